// Segment-Radix, memory capped: a radix tree of segments, its nodes in RocksDB, an LRU of nodes in memory
// (arXiv 2610.26849, as summarised: nodes are read from storage one by one on the way down, memory is capped).
//
// A node is a run of up to 64 blocks inside one aligned window: n ids, n locations, one flag byte. Its node id is the
// id of its first block, so the child table is the key space itself: a child is looked up by the query's next id,
// without reading its siblings, and a parent of thousands of sessions is not rewritten for each.
//   split      a query that leaves a node at block k: the node keeps k blocks and is flagged branched, the rest becomes
//              a node of its own under the id of its first block, and so does what the query adds.
//   growth     a node that is not branched is extended in place up to the window's end; each window opens a node.
// paper: from the root, one Get a node, each through the node cache.
// best: all windows' first nodes at once by MultiGet (filters make those beyond the match free), then in further rounds
// the next node of every window whose node ended inside it: as many rounds as the deepest split chain in one window.
// What the node cache holds is followed before each round. After opening, best answers at once and warms up
// from its snapshot afterwards; paper loads its snapshot first.
#include <fcntl.h>
#include <rocksdb/write_batch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "design.h"
#include "record_cache.h"

namespace rocks {

namespace {

constexpr uint8_t kBranched = 1;

class Radix : public Design {
 public:
  explicit Radix(const Config& config)
      : Design(config),
        nodes_(budget_.own, config.best() ? static_cast<uint32_t>(config.tuned("admit", 4)) : 1) {}

  void match(const Id* ids, uint32_t history, Context& context) override {
    context.locations.resize(history * kLocationBytes);
    context.matched = config_.best() ? descend_in_rounds(ids, history, context) : descend(ids, history, context);
  }

  void insert(const Id* ids, uint32_t, uint32_t total, Context& context) override {
    if (context.matched >= total) return;
    for (uint32_t window = context.matched / kWindow; window * kWindow < total; ++window) {
      std::lock_guard<std::mutex> hold(stripe_of(ids, window).lock);
      if (!extend(ids, window, total, context)) return;
    }
  }

  void save() override {
    const std::vector<Id> ids = nodes_.ids();
    const std::string path = config_.db + "/nodes.snapshot", fresh = path + ".new";
    const int file = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    const size_t bytes = ids.size() * sizeof(Id);
    const bool written = file >= 0 && ::write(file, ids.data(), bytes) == static_cast<ssize_t>(bytes) &&
                         ::fsync(file) == 0;
    if (file >= 0) ::close(file);
    if (!written || std::rename(fresh.c_str(), path.c_str()) != 0)
      check(rocksdb::Status::IOError(path), "writing the snapshot");
  }

  // The snapshot names the nodes; what they hold comes from RocksDB, so it can never be stale.
  void load() override {
    std::ifstream file(config_.db + "/nodes.snapshot", std::ios::binary);
    std::vector<Id> ids;
    for (Id id; file.read(reinterpret_cast<char*>(&id), sizeof id);) ids.push_back(id);
    std::reverse(ids.begin(), ids.end());
    Context context;
    for (size_t at = 0; at < ids.size(); at += kWindow) {
      context.batch.clear();
      const size_t end = std::min(ids.size(), at + kWindow);
      for (size_t i = at; i < end; ++i) context.batch.add(ids[i]);
      read(context);
    }
  }

  bool loads_before_answering() const override { return !config_.best(); }

 private:
  // One MultiGet of context.batch, what it finds offered to the node cache.
  void read(Context& context) {
    Batch& batch = context.batch;
    const auto id_of = [&](size_t i) -> const Id& { return *reinterpret_cast<const Id*>(batch.keys[i].data()); };
    context.epochs.clear();
    for (size_t i = 0; i < batch.keys.size(); ++i) context.epochs.push_back(nodes_.epoch(id_of(i)));
    fetcher_->many(batch, &context.reads);
    for (size_t i = 0; i < batch.keys.size(); ++i)
      if (batch.found(i)) nodes_.fill(id_of(i), batch.data(i), batch.values[i].size(), context.epochs[i]);
  }

  // use(bytes, size) for the node; false where there is none.
  template <typename Use>
  bool with_node(const Id& id, Context& context, Use&& use) {
    if (nodes_.with(id, use)) return true;
    const uint64_t epoch = nodes_.epoch(id);
    if (!fetcher_->one(id, &context.value, &context.reads)) return false;
    use(reinterpret_cast<const uint8_t*>(context.value.data()), context.value.size());
    nodes_.fill(id, context.value.data(), context.value.size(), epoch);
    return true;
  }

  // Takes what matches of a node at `position`; true if all of it does, so that the descent goes on below.
  static bool step(const uint8_t* node, size_t bytes, const Id* ids, uint32_t* position, uint32_t end,
                   Context& context) {
    const uint32_t blocks = blocks_in(bytes);
    const uint32_t run = common(node, blocks, ids + *position, end - *position);
    std::memcpy(&context.locations[*position * kLocationBytes], node + blocks * kIdBytes, run * kLocationBytes);
    *position += run;
    return run == blocks;
  }

  uint32_t descend(const Id* ids, uint32_t history, Context& context) {
    uint32_t position = 0;
    for (bool on = true; on && position < history;) {
      const bool there = with_node(ids[position], context, [&](const uint8_t* node, size_t bytes) {
        on = step(node, bytes, ids, &position, history, context);
      });
      on = on && there;
    }
    return position;
  }

  uint32_t descend_in_rounds(const Id* ids, uint32_t history, Context& context) {
    const uint32_t windows = (history + kWindow - 1) / kWindow;
    std::vector<uint32_t>&position = context.positions, &open = context.wanted;
    position.clear();
    open.clear();
    for (uint32_t w = 0; w < windows; ++w) {
      position.push_back(w * kWindow);
      open.push_back(w);
    }
    const auto end_of = [&](uint32_t w) { return std::min(history, (w + 1) * kWindow); };
    while (!open.empty()) {
      context.batch.clear();
      size_t kept = 0;
      for (const uint32_t w : open) {
        bool on = true;
        while (on && position[w] < end_of(w))
          if (!nodes_.with(ids[position[w]], [&](const uint8_t* node, size_t bytes) {
                on = step(node, bytes, ids, &position[w], end_of(w), context);
              }))
            break;
        if (!on || position[w] >= end_of(w)) continue;
        context.batch.add(ids[position[w]]);
        open[kept++] = w;
      }
      open.resize(kept);
      read(context);
      kept = 0;
      for (size_t i = 0; i < open.size(); ++i) {
        const uint32_t w = open[i];
        if (context.batch.found(i) && step(context.batch.data(i), context.batch.values[i].size(), ids, &position[w],
                                           end_of(w), context))
          open[kept++] = w;
      }
      open.resize(kept);
    }
    context.batch.clear();
    for (uint32_t w = 0; w < windows; ++w)
      if (position[w] < end_of(w)) return position[w];
    return history;
  }

  struct Change {
    Id id;
    std::string node;
    bool keep;
  };

  static Change node_of(const Id* ids, uint32_t blocks, bool keep) {
    Change change{ids[0], {}, keep};
    pack(ids, blocks, &change.node);
    change.node.push_back(0);
    return change;
  }

  // Under the window's lock. True: all of this window is held and the next one is to be looked at.
  bool extend(const Id* ids, uint32_t window, uint32_t total, Context& context) {
    const Id* first = ids + window * kWindow;
    const uint32_t blocks = std::min(kWindow, total - window * kWindow);
    uint32_t begin = 0, offset = 0;  // the last node met begins at `begin`, the walk stands at `offset`
    std::vector<Change> changes;
    std::string& node = context.record;
    node.clear();
    while (offset < blocks) {
      const bool there = with_node(first[offset], context, [&](const uint8_t* bytes, size_t size) {
        node.assign(reinterpret_cast<const char*>(bytes), size);
      });
      if (!there) break;
      begin = offset;
      const uint32_t held = blocks_in(node.size());
      const uint32_t run = common(reinterpret_cast<const uint8_t*>(node.data()), held, first + offset, blocks - offset);
      offset += run;
      if (run < held) {
        if (offset < blocks) split(node, run, first[begin], &changes);
        break;
      }
    }
    if (offset == blocks) return blocks == kWindow;
    if (changes.empty() && offset > 0 && static_cast<uint8_t>(node.back()) != kBranched)
      changes.push_back(node_of(first + begin, blocks - begin, nodes_.held(first[begin])));
    else
      changes.push_back(node_of(first + offset, blocks - offset, false));
    for (uint32_t at = (window + 1) * kWindow; at < total; at += kWindow)
      changes.push_back(node_of(ids + at, std::min(kWindow, total - at), false));
    commit(changes);
    return false;
  }

  void split(const std::string& node, uint32_t run, const Id& key, std::vector<Change>* changes) {
    const uint32_t held = blocks_in(node.size());
    const char *ids = node.data(), *locations = ids + held * kIdBytes;
    const bool keep = nodes_.held(key);
    Change upper{key, std::string(ids, run * kIdBytes), keep}, lower{{}, {}, keep};
    upper.node.append(locations, run * kLocationBytes);
    upper.node.push_back(kBranched);
    std::memcpy(lower.id.bytes, ids + run * kIdBytes, kIdBytes);
    lower.node.assign(ids + run * kIdBytes, (held - run) * kIdBytes);
    lower.node.append(locations + run * kLocationBytes, (held - run) * kLocationBytes);
    lower.node.push_back(node.back());
    changes->push_back(std::move(upper));
    changes->push_back(std::move(lower));
  }

  void commit(const std::vector<Change>& changes) {
    rocksdb::WriteBatch batch;
    for (const Change& change : changes) {
      nodes_.begin_write(change.id);
      check(batch.Put(slice_of(change.id), change.node), "Put");
    }
    write(batch);
    for (const Change& change : changes)
      nodes_.end_write(change.id, change.node.data(), change.node.size(), change.keep);
  }

  RecordCache nodes_;
};

}  // namespace

std::unique_ptr<Design> make_radix(const Config& config) { return std::make_unique<Radix>(config); }

}  // namespace rocks
