#include <cstdio>
#include <exception>

#include "harness.h"

// A RocksDB that was built with liburing asks for this before its MultiGet reads through it.
extern "C" bool RocksDbIOUringEnable() { return true; }

int main(int argc, char** argv) {
  try {
    const rocks::Config config = rocks::parse(argc, argv);
    if (config.mode == "run") rocks::run(config);
    else if (config.mode == "fill") rocks::fill(config);
    else rocks::recover(config);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rocks_bench: %s\n", error.what());
    return 1;
  }
}
