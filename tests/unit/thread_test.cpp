#include "base/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

namespace dgpu {
namespace {

TEST(ThreadTest, OurThreadsBlockSignalsButNotFaults) {
  sigset_t here_before;
  pthread_sigmask(SIG_SETMASK, nullptr, &here_before);
  sigset_t inside;
  char name[16] = {};
  bool ours = false;
  spawn_thread("dgpu-a-rather-long-name", [&] {
    pthread_sigmask(SIG_SETMASK, nullptr, &inside);
    pthread_getname_np(pthread_self(), name, sizeof(name));
    ours = thread_is_ours();
  }).join();
  for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGALRM, SIGPROF}) EXPECT_EQ(sigismember(&inside, signal), 1);
  for (int signal : {SIGSEGV, SIGFPE, SIGBUS, SIGILL}) EXPECT_EQ(sigismember(&inside, signal), 0);
  EXPECT_STREQ(name, "dgpu-a-rather-l");
  EXPECT_TRUE(ours);
  EXPECT_FALSE(thread_is_ours());
  sigset_t here_after;
  pthread_sigmask(SIG_SETMASK, nullptr, &here_after);
  EXPECT_EQ(sigismember(&here_after, SIGINT), sigismember(&here_before, SIGINT));
}

TEST(ThreadTest, UserCodeScopesNest) {
  EXPECT_FALSE(in_user_code());
  {
    UserCodeScope outer;
    UserCodeScope inner;
    EXPECT_TRUE(in_user_code());
    EXPECT_TRUE(thread_is_ours());
  }
  EXPECT_FALSE(in_user_code());
}

}  // namespace
}  // namespace dgpu
