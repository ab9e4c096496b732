// Reading many keys: Get one by one, MultiGet, or MultiGet spread over helper threads.
#pragma once

#include <rocksdb/db.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "requests.h"

namespace rocks {

// One thread's keys and what was found for them. Values stay pinned until `clear`.
struct Batch {
  std::vector<rocksdb::Slice> keys;
  std::vector<rocksdb::PinnableSlice> values;
  std::vector<rocksdb::Status> statuses;

  void clear();
  void add(const Id& id) { keys.emplace_back(reinterpret_cast<const char*>(id.bytes), kIdBytes); }
  bool found(size_t i) const { return statuses[i].ok(); }
  const uint8_t* data(size_t i) const { return reinterpret_cast<const uint8_t*>(values[i].data()); }
};

// Distribution packages of RocksDB are built without io_uring and coroutines: there MultiGet reads one block after
// another, whatever ReadOptions::async_io says. Where few request threads keep the device idle, helper threads
// take shares of a batch instead.
class Fetcher {
 public:
  Fetcher(rocksdb::DB* db, rocksdb::ReadOptions options, int helpers, size_t share);
  ~Fetcher();

  bool one(const Id& id, rocksdb::PinnableSlice* value, uint64_t* reads);
  void many(Batch& batch, uint64_t* reads);

 private:
  struct Work;
  void part(Work& work);
  void help();

  rocksdb::DB* db_;
  rocksdb::ReadOptions options_;
  size_t share_;
  std::mutex lock_;
  std::condition_variable wake_;
  std::deque<Work*> queue_;
  bool stop_ = false;
  std::vector<std::thread> helpers_;
};

// Fails loudly: a baseline that swallows an error would answer a miss, and fast.
void check(const rocksdb::Status& status, const char* what);

}  // namespace rocks
