// What a run is asked for, and how RocksDB is set up for each design and variant.
#pragma once

#include <rocksdb/options.h>

#include <map>
#include <memory>
#include <string>

namespace rocksdb {
class Cache;
}

namespace rocks {

struct Config {
  std::string mode, design, variant, requests, db, out, probe;
  int threads = 1;
  double seconds_max = 1e9;
  uint64_t cache_bytes = 8u << 20;
  std::map<std::string, double> tune;  // --tune name=value: for repeating the measurements of the choices below

  bool best() const { return variant == "best"; }
  double tuned(const std::string& name, double otherwise) const;
};

// Throws std::invalid_argument with what is wrong.
Config parse(int argc, char** argv);

struct Budget {
  uint64_t own;        // the design's own cache of rows or nodes
  uint64_t rocksdb;    // the block cache: data, index, filters, and the memtables charged to it
  uint64_t memtables;  // of which memtables at most
};
Budget budget_of(const Config& config);

rocksdb::Options options_of(const Config& config, const Budget& budget, std::shared_ptr<rocksdb::Cache>* cache);

}  // namespace rocks
