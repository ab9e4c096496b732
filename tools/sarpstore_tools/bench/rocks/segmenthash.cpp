// Segment-Hash: a RocksDB record for up to 64 consecutive blocks of one aligned window, its key computed from the
// query alone (arXiv 2610.26849, as summarised: "Segment-Hash keyed directly from the query").
//
// A record holds the window's ids from its first position on, then their locations. Where it lies:
//   full (64 blocks)   under the id of the window's LAST block: one probe a window for whatever matches whole;
//   shorter            under the id of the block at which it left what was already held (offset d in the window;
//                      0 where it opened the window). Growing, it is written over under the same key; becoming
//                      full it moves to its last block's key, and at d stays a pointer (16 bytes: that key).
// Exact, because on any path the deepest key in a window names a record that contains the last block held there:
// a key below d on the same path would contradict "not held when inserted". So:
//   match    the last ids of all full windows and all ids of the tail window are probed in one round; if a full
//            window is absent, the 63 other ids of the first such window in a second. The deepest hit is read (through
//            its pointer, if it is one) and its ids are compared.
//   insert   under the lock of the window's parent, the window is probed again, then extended, or branched with a
//            copy of the shared part; further windows are written whole. One atomic batch.
// paper: one Get a probe, windows in order, the tail from its deepest id upwards. best: MultiGet, and full records
// (which never change) in a record cache. Filters make absent probes free in both: without, each is a read.
#include <rocksdb/write_batch.h>

#include <algorithm>

#include "design.h"
#include "record_cache.h"

namespace rocks {

namespace {

class SegmentHash : public Design {
 public:
  explicit SegmentHash(const Config& config)
      : Design(config),
        records_(config.best() ? budget_.own : 0, static_cast<uint32_t>(config.tuned("admit", 4))) {}

  void match(const Id* ids, uint32_t history, Context& context) override {
    context.locations.resize(history * kLocationBytes);
    if (config_.best()) {
      context.tail = match_at_once(ids, history, context);
    } else {
      uint32_t window = 0;
      while ((window + 1) * kWindow <= history &&
             fetcher_->one(last_of(ids, window), &context.value, &context.reads)) {
        take(as_bytes(context.value), kWindow, window, kWindow, context);
        ++window;
      }
      context.tail = probe_singly(ids, window, 0, history, context);
    }
    context.matched = context.tail.window * kWindow + context.tail.run;
  }

  void insert(const Id* ids, uint32_t history, uint32_t total, Context& context) override {
    if (context.matched >= total) return;
    context.locations.resize(total * kLocationBytes);
    for (uint32_t window = context.matched / kWindow; window * kWindow < total; ++window) {
      Stripe& stripe = stripe_of(ids, window);
      std::lock_guard<std::mutex> hold(stripe.lock);
      const uint32_t blocks = std::min(kWindow, total - window * kWindow);
      Tail tail = context.tail;
      if (tail.window != window || tail.writes != stripe.writes ||
          !still_all(ids, window, history, total, tail, context)) {
        if (blocks == kWindow && (records_.held(last_of(ids, window)) ||
                                  fetcher_->one(last_of(ids, window), &context.value, &context.reads)))
          continue;  // someone was faster, or the history ended inside what is held
        tail = probe(ids, window, 0, total, context);
      }
      if (tail.run < blocks) {
        add(ids, window, total, tail, context);
        ++stripe.writes;  // after the commit: who reads the count in between probes again for nothing
      }
      return;
    }
  }

 private:
  static const Id& last_of(const Id* ids, uint32_t window) { return ids[window * kWindow + kWindow - 1]; }
  static const uint8_t* as_bytes(const rocksdb::PinnableSlice& value) {
    return reinterpret_cast<const uint8_t*>(value.data());
  }

  // The first `run` locations of a record of window `window`.
  static void take(const uint8_t* record, uint32_t blocks, uint32_t window, uint32_t run, Context& context) {
    std::memcpy(&context.locations[window * kWindow * kLocationBytes], record + blocks * kIdBytes,
                run * kLocationBytes);
  }

  // Nothing was written in this window since the match: what it learned is the whole truth, but for the ids that
  // follow the history.
  bool still_all(const Id* ids, uint32_t window, uint32_t history, uint32_t total, const Tail& tail,
                 Context& context) {
    if (window * kWindow + tail.run < history) return true;  // it ended at a block that is not held
    if (tail.blocks > tail.run) return false;                // the owner goes on behind the history: compare
    if (total >= (window + 1) * kWindow && fetcher_->one(last_of(ids, window), &context.value, &context.reads))
      return false;
    return probe(ids, window, history - window * kWindow, total, context).blocks == 0;
  }

  Tail probe(const Id* ids, uint32_t window, uint32_t from, uint32_t end, Context& context) {
    return config_.best() ? probe_together(ids, window, from, end, context)
                          : probe_singly(ids, window, from, end, context);
  }

  Tail match_at_once(const Id* ids, uint32_t history, Context& context) {
    Batch& batch = context.batch;
    std::vector<uint32_t>& wanted = context.wanted;
    const uint32_t whole = history / kWindow, tail_blocks = history % kWindow;
    batch.clear();
    wanted.clear();
    for (uint32_t w = 0; w < whole; ++w)
      if (!records_.with(last_of(ids, w),
                         [&](const uint8_t* record, size_t) { take(record, kWindow, w, kWindow, context); })) {
        wanted.push_back(w);
        batch.add(last_of(ids, w));
      }
    for (uint32_t i = 0; i < tail_blocks; ++i) batch.add(ids[whole * kWindow + i]);
    const uint64_t writes = stripe_of(ids, whole).writes;
    fetcher_->many(batch, &context.reads);
    for (size_t i = 0; i < wanted.size(); ++i) {
      const uint32_t w = wanted[i];
      if (!batch.found(i)) return probe_together(ids, w, 0, history, context);
      take(batch.data(i), kWindow, w, kWindow, context);
      records_.fill(last_of(ids, w), batch.data(i), kWindow * kBlockBytes, records_.epoch(last_of(ids, w)));
    }
    return deepest(ids, whole, 0, history, wanted.size(), writes, context);
  }

  // The offsets from `from` on of a window whose last block, if the query has it, is known not to be held.
  Tail probe_together(const Id* ids, uint32_t window, uint32_t from, uint32_t end, Context& context) {
    const uint64_t writes = stripe_of(ids, window).writes;
    const uint32_t most = std::min(kWindow - 1, end - window * kWindow);
    context.batch.clear();
    for (uint32_t i = from; i < most; ++i) context.batch.add(ids[window * kWindow + i]);
    fetcher_->many(context.batch, &context.reads);
    return deepest(ids, window, from, end, 0, writes, context);
  }

  // The window's owner among what `batch` found from its entry `first` on: offset `from`, from + 1, …
  Tail deepest(const Id* ids, uint32_t window, uint32_t from, uint32_t end, size_t first, uint64_t writes,
               Context& context) {
    Batch& batch = context.batch;
    Tail tail{window, 0, 0, 0, writes};
    for (size_t i = batch.keys.size(); i-- > first && !tail.blocks;)
      if (batch.found(i)) own(ids, end, from + static_cast<uint32_t>(i - first), batch.values[i], &tail, context);
    batch.clear();
    return tail;
  }

  Tail probe_singly(const Id* ids, uint32_t window, uint32_t from, uint32_t end, Context& context) {
    Tail tail{window, 0, 0, 0, window * kWindow < end ? stripe_of(ids, window).writes.load() : 0};
    if (window * kWindow >= end) return tail;
    for (uint32_t i = std::min(kWindow - 1, end - window * kWindow); i-- > from && !tail.blocks;)
      if (fetcher_->one(ids[window * kWindow + i], &context.value, &context.reads))
        own(ids, end, i, context.value, &tail, context);
    return tail;
  }

  // The record found at `offset` (or the one it points to) is the owner: how far does the query follow it?
  void own(const Id* ids, uint32_t end, uint32_t offset, const rocksdb::PinnableSlice& value, Tail* tail,
           Context& context) {
    const uint32_t start = tail->window * kWindow;
    tail->offset = offset;
    const auto compare = [&](const uint8_t* record, size_t bytes) {
      tail->blocks = blocks_in(bytes);
      tail->run = common(record, tail->blocks, ids + start, std::min(kWindow, end - start));
      take(record, tail->blocks, tail->window, tail->run, context);
    };
    if (value.size() != kIdBytes) return compare(as_bytes(value), value.size());
    Id last;
    std::memcpy(last.bytes, value.data(), kIdBytes);
    if (records_.with(last, compare)) return;
    rocksdb::PinnableSlice record;
    if (!fetcher_->one(last, &record, &context.reads)) check(rocksdb::Status::Corruption(), "a pointer to nothing");
    compare(as_bytes(record), record.size());
    records_.fill(last, record.data(), record.size(), records_.epoch(last));
  }

  void add(const Id* ids, uint32_t window, uint32_t total, const Tail& tail, Context& context) {
    rocksdb::WriteBatch batch;
    // Extends the owner where the query reaches its end, else leaves it at the first block that is not held.
    const bool extends = tail.blocks && tail.run == tail.blocks;
    uint32_t offset = extends ? tail.offset : tail.run;
    for (; window * kWindow < total; ++window, offset = 0) {
      const Id* first = ids + window * kWindow;
      const uint32_t blocks = std::min(kWindow, total - window * kWindow);
      pack(first, blocks, &context.record);
      const bool full = blocks == kWindow;
      const Id& key = full ? first[kWindow - 1] : first[offset];
      check(batch.Put(slice_of(key), context.record), "Put");
      if (full && offset < kWindow - 1) check(batch.Put(slice_of(first[offset]), slice_of(key)), "Put");
    }
    write(batch);
  }

  RecordCache records_;
};

}  // namespace

std::unique_ptr<Design> make_segmenthash(const Config& config) { return std::make_unique<SegmentHash>(config); }

}  // namespace rocks
