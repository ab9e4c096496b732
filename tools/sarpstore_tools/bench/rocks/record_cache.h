// Records (or tree nodes) in memory: sharded LRU over single records, bounded by bytes with all its overheads.
// RocksDB's block cache keeps a record's random neighbours with it; here only what was asked for takes memory.
//
// Coherence: a writer calls `begin_write` before it commits and `end_write` after. A reader takes `epoch` before it
// reads RocksDB and its `fill` is dropped if a write began or ended in that shard meanwhile, so that a stale
// record never enters.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "requests.h"

namespace rocks {

class RecordCache {
 public:
  // `admit_one_in`: once full, one fill of so many is let in: sessions visited in turn would flush a plain LRU.
  RecordCache(uint64_t bytes, uint32_t admit_one_in) : admit_one_in_(admit_one_in) {
    if (bytes == 0) return;
    shards_ = std::vector<Shard>(bytes < (4u << 20) ? 4 : 16);
    for (auto& shard : shards_) shard.capacity = bytes / shards_.size();
  }

  // use(bytes, size) under the shard's lock; false where it is not there.
  template <typename Use>
  bool with(const Id& id, Use&& use) {
    if (shards_.empty()) return false;
    Shard& shard = shard_of(id);
    std::lock_guard<std::mutex> hold(shard.lock);
    const auto found = shard.map.find(id);
    if (found == shard.map.end()) return false;
    shard.order.splice(shard.order.begin(), shard.order, found->second);
    const std::string& record = found->second->record;
    use(reinterpret_cast<const uint8_t*>(record.data()), record.size());
    return true;
  }

  uint64_t epoch(const Id& id) {
    if (shards_.empty()) return 0;
    Shard& shard = shard_of(id);
    std::lock_guard<std::mutex> hold(shard.lock);
    return shard.epoch;
  }

  void fill(const Id& id, const void* record, size_t bytes, uint64_t epoch) {
    if (shards_.empty()) return;
    Shard& shard = shard_of(id);
    std::lock_guard<std::mutex> hold(shard.lock);
    if (shard.epoch != epoch || shard.map.count(id)) return;
    if (shard.used + bytes + kOverhead > shard.capacity && ++shard.offered % admit_one_in_) return;
    put(shard, id, record, bytes);
  }

  void begin_write(const Id& id) {
    if (shards_.empty()) return;
    Shard& shard = shard_of(id);
    std::lock_guard<std::mutex> hold(shard.lock);
    ++shard.epoch;
    drop(shard, id);
  }

  // The new record enters if there is room, or if `keep`.
  void end_write(const Id& id, const void* record, size_t bytes, bool keep) {
    if (shards_.empty()) return;
    Shard& shard = shard_of(id);
    std::lock_guard<std::mutex> hold(shard.lock);
    ++shard.epoch;
    if (keep) put(shard, id, record, bytes);
  }

  bool held(const Id& id) {
    return with(id, [](const uint8_t*, size_t) {});
  }

  // The ids of all records held, most recently used first in each shard.
  std::vector<Id> ids() {
    std::vector<Id> all;
    for (auto& shard : shards_) {
      std::lock_guard<std::mutex> hold(shard.lock);
      for (const Entry& entry : shard.order) all.push_back(entry.id);
    }
    return all;
  }

 private:
  // List and map nodes, the string's block, allocator headers and the share of the bucket array.
  static constexpr size_t kOverhead = 176;
  struct Hash {
    size_t operator()(const Id& id) const { return hash_of(id); }
  };
  struct Equal {
    bool operator()(const Id& a, const Id& b) const { return same(a, b.bytes); }
  };
  struct Entry {
    Id id;
    std::string record;
  };
  struct Shard {
    std::mutex lock;
    std::list<Entry> order;
    std::unordered_map<Id, std::list<Entry>::iterator, Hash, Equal> map;
    uint64_t capacity = 0, used = 0, epoch = 0;
    uint32_t offered = 0;
    Shard() = default;
    Shard(const Shard&) {}
  };

  Shard& shard_of(const Id& id) { return shards_[id.bytes[15] % shards_.size()]; }

  void drop(Shard& shard, const Id& id) {
    const auto found = shard.map.find(id);
    if (found == shard.map.end()) return;
    shard.used -= found->second->record.size() + kOverhead;
    shard.order.erase(found->second);
    shard.map.erase(found);
  }

  void put(Shard& shard, const Id& id, const void* record, size_t bytes) {
    drop(shard, id);
    while (!shard.order.empty() && shard.used + bytes + kOverhead > shard.capacity) {
      const Id last = shard.order.back().id;
      drop(shard, last);
    }
    if (bytes + kOverhead > shard.capacity) return;
    shard.order.push_front(Entry{id, std::string(static_cast<const char*>(record), bytes)});
    shard.map.emplace(id, shard.order.begin());
    shard.used += bytes + kOverhead;
  }

  uint32_t admit_one_in_;
  std::vector<Shard> shards_;
};

}  // namespace rocks
