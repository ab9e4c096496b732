// SSD-BlockHash: one RocksDB entry a block, id → location (arXiv 2610.26849, as summarised: "the same entries in
// RocksDB", each block a separate storage read).
//
// paper: Get block by block from the start of the history to the first miss.
// best: rows found in the row cache first, the others by MultiGet, `batch` blocks at a time up to the first miss.
#include <rocksdb/write_batch.h>

#include <algorithm>

#include "design.h"
#include "row_cache.h"

namespace rocks {

namespace {

class BlockHash : public Design {
 public:
  explicit BlockHash(const Config& config)
      : Design(config),
        rows_(config.best() ? budget_.own : 0, static_cast<uint32_t>(config.tuned("admit", 8))),
        batch_(static_cast<uint32_t>(config.tuned("batch", 128))) {}

  void match(const Id* ids, uint32_t history, Context& context) override {
    context.locations.resize(history * kLocationBytes);
    context.matched = config_.best() ? held_batched(ids, 0, history, batch_, context)
                                     : held_one_by_one(ids, 0, history, context);
  }

  void insert(const Id* ids, uint32_t history, uint32_t total, Context& context) override {
    uint32_t first = context.matched;
    if (first == history && first < total) {
      // Held further than the history reaches? Mostly not at all: one probe first, then more at a time.
      context.locations.resize(total * kLocationBytes);
      if (!config_.best()) {
        first = held_one_by_one(ids, first, total, context);
      } else {
        for (uint32_t step = 1; first < total; step = std::min(2 * step, batch_)) {
          const uint32_t next = std::min(total, first + step);
          const uint32_t reached = held_batched(ids, first, next, step, context);
          first = reached;
          if (reached < next) break;
        }
      }
    }
    if (first == total) return;
    // Whatever else is inserted meanwhile: the same block has the same row, and a batch is seen whole, so that
    // the rows stay closed under prefixes without a lock.
    rocksdb::WriteBatch batch((total - first) * 48);
    for (uint32_t i = first; i < total; ++i)
      check(batch.Put(slice_of(ids[i]), {reinterpret_cast<const char*>(ids[i].bytes), kLocationBytes}), "Put");
    write(batch);
  }

 private:
  uint32_t held_one_by_one(const Id* ids, uint32_t from, uint32_t to, Context& context) {
    for (uint32_t i = from; i < to; ++i) {
      if (!fetcher_->one(ids[i], &context.value, &context.reads)) return i;
      std::memcpy(&context.locations[i * kLocationBytes], context.value.data(), kLocationBytes);
    }
    return to;
  }

  uint32_t held_batched(const Id* ids, uint32_t from, uint32_t to, uint32_t step, Context& context) {
    Batch& batch = context.batch;
    std::vector<uint32_t>& wanted = context.wanted;
    for (uint32_t at = from; at < to;) {
      batch.clear();
      wanted.clear();
      for (; at < to && wanted.size() < step; ++at)
        if (!rows_.get(ids[at], &context.locations[at * kLocationBytes])) {
          wanted.push_back(at);
          batch.add(ids[at]);
        }
      fetcher_->many(batch, &context.reads);
      for (size_t i = 0; i < wanted.size(); ++i) {
        if (!batch.found(i)) {
          batch.clear();
          return wanted[i];
        }
        std::memcpy(&context.locations[wanted[i] * kLocationBytes], batch.data(i), kLocationBytes);
        rows_.fill(ids[wanted[i]], batch.data(i));
      }
    }
    batch.clear();
    return to;
  }

  RowCache rows_;
  uint32_t batch_;
};

}  // namespace

std::unique_ptr<Design> make_blockhash(const Config& config) { return std::make_unique<BlockHash>(config); }

}  // namespace rocks
