// Tokens that would go to other experts in low precision than in the f32 run, and whether rounding explains it.
//
// One flip changes that token from there on, and with it every later token that attends to it. So the run in low
// precision is given the experts of the f32 run, and each node says what it would have chosen: every flip is judged by
// its own margin, none by what an earlier one did, and every token is compared.
#pragma once
#include "model/day0/capture.h"

namespace dgpu::model {

struct Flip {
  std::string node;
  int64_t token = 0;
  double margin = 0;  // largest f32 gap between an expert that the f32 run chose and one that came in its place
  double error = 0;   // derived error of such a gap
  bool excused = false;
};

// The choices of a run, to be given to another one.
graph::Routes routes_of(const Capture& run);
// `low` ran with routes_of(f32). `one_rounding`: relative L2 error of one rounding to the low type.
std::vector<Flip> find_flips(const Capture& low, const Capture& f32, double one_rounding);

}  // namespace dgpu::model
