// Single blocks in memory: 32 bytes a block, eight-way sets with small use counters. A block's location never
// changes, so there is nothing to keep coherent.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>

#include "requests.h"

namespace rocks {

class RowCache {
 public:
  RowCache(uint64_t bytes, uint32_t admit_one_in) : sets_(bytes / sizeof(Set)), admit_one_in_(admit_one_in) {
    if (sets_) all_.reset(new Set[sets_]());
  }

  bool get(const Id& id, uint8_t* location) {
    if (!sets_) return false;
    Set& set = set_of(id);
    Hold hold(set);
    for (int way = 0; way < kWays; ++way)
      if (set.uses[way] && same(id, set.ids[way].bytes)) {
        if (set.uses[way] < kUsesMax) ++set.uses[way];
        std::memcpy(location, set.locations[way], kLocationBytes);
        return true;
      }
    return false;
  }

  // A read block enters a free place, or one in `admit_one_in` times the place of the least used.
  void fill(const Id& id, const uint8_t* location) {
    if (!sets_) return;
    Set& set = set_of(id);
    Hold hold(set);
    int least = 0;
    for (int way = 0; way < kWays; ++way) {
      if (set.uses[way] && same(id, set.ids[way].bytes)) return;
      if (set.uses[way] < set.uses[least]) least = way;
    }
    if (set.uses[least]) {
      if (++set.offered % admit_one_in_) return;
      for (uint8_t& uses : set.uses) uses -= uses > 1;
    }
    set.ids[least] = id;
    std::memcpy(set.locations[least], location, kLocationBytes);
    set.uses[least] = 1;
  }

 private:
  static constexpr int kWays = 8;
  static constexpr uint8_t kUsesMax = 15;
  struct Set {
    Id ids[kWays];
    uint8_t locations[kWays][kLocationBytes];
    uint8_t uses[kWays];  // 0: free
    uint8_t offered;
    std::atomic_flag busy;
  };
  struct Hold {
    explicit Hold(Set& s) : set(s) {
      while (set.busy.test_and_set(std::memory_order_acquire)) {
      }
    }
    ~Hold() { set.busy.clear(std::memory_order_release); }
    Set& set;
  };

  Set& set_of(const Id& id) { return all_[hash_of(id) % sets_]; }

  uint64_t sets_;
  uint32_t admit_one_in_;
  std::unique_ptr<Set[]> all_;
};

}  // namespace rocks
