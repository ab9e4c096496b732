// What the three baselines have in common: a RocksDB, a match, an insert.
#pragma once

#include <rocksdb/cache.h>
#include <rocksdb/db.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fetch.h"
#include "options.h"
#include "requests.h"

namespace rocks {

// What segmenthash's match learned of the window in which it ended.
struct Tail {
  uint32_t window = 0;
  uint32_t run = 0;     // blocks of the query held in it
  uint32_t blocks = 0;  // the owner's length; 0: nothing of the window is held on this path
  uint32_t offset = 0;  // the owner's key's offset
  uint64_t writes = 0;  // to this stripe when the probing began
};

// One request thread's state. `matched` and `locations` are the last match's answer; the rest is scratch.
struct Context {
  uint32_t matched = 0;
  std::vector<uint8_t> locations;
  uint64_t reads = 0;
  Batch batch;
  rocksdb::PinnableSlice value;
  std::vector<uint32_t> wanted, positions;
  std::vector<uint64_t> epochs;
  std::string record;
  Tail tail;
};

class Design {
 public:
  static std::unique_ptr<Design> open(const Config& config);
  virtual ~Design();

  virtual void match(const Id* ids, uint32_t history, Context& context) = 0;
  // By the same thread right after match(ids, history): makes ids[:total] held.
  virtual void insert(const Id* ids, uint32_t history, uint32_t total, Context& context) = 0;
  // The design's own state beyond RocksDB's: written now and then, loaded after opening.
  virtual void save() {}
  virtual void load() {}
  virtual bool loads_before_answering() const { return false; }

  void sync() { check(db_->SyncWAL(), "SyncWAL"); }
  std::string notes() const;

 protected:
  explicit Design(const Config& config);
  void write(rocksdb::WriteBatch& batch);
  // Insertions below one parent (the block before the window that changes) exclude one another.
  struct Stripe {
    std::mutex lock;
    std::atomic<uint64_t> writes{0};
  };
  Stripe& stripe_of(const Id* ids, uint32_t window);

  Config config_;
  Budget budget_;
  std::shared_ptr<rocksdb::Cache> cache_;
  std::unique_ptr<rocksdb::DB> db_;
  std::unique_ptr<Fetcher> fetcher_;

 private:
  std::array<Stripe, 1024> stripes_;
};

inline rocksdb::Slice slice_of(const Id& id) { return {reinterpret_cast<const char*>(id.bytes), kIdBytes}; }

std::unique_ptr<Design> make_blockhash(const Config& config);
std::unique_ptr<Design> make_segmenthash(const Config& config);
std::unique_ptr<Design> make_radix(const Config& config);

// Records and nodes: n ids, then n locations.
inline uint32_t blocks_in(size_t bytes) { return static_cast<uint32_t>(bytes / kBlockBytes); }
// How many of the record's first blocks are ids[0], ids[1], …, at most `limit`.
uint32_t common(const uint8_t* record, uint32_t blocks, const Id* ids, uint32_t limit);
void pack(const Id* ids, uint32_t blocks, std::string* record);

}  // namespace rocks
