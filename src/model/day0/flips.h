// Tokens whose experts differ between a run in low precision and the f32 run, and whether rounding explains it.
#pragma once
#include "model/day0/capture.h"

namespace dgpu::model {

struct Flip {
  std::string node;
  graph::Id at = 0;  // position of the routing node in the program
  int64_t token = 0;
  double margin = 0;  // f32 gap between the last chosen and the first not chosen expert
  double error = 0;   // derived error of such a gap
  bool excused = false;
};

// `one_rounding`: relative L2 error of one rounding to the low type.
std::vector<Flip> find_flips(const Capture& low, const Capture& f32, double one_rounding);

}  // namespace dgpu::model
