#include "harness.h"

#include <rocksdb/perf_level.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "design.h"
#include "measure.h"

namespace rocks {

namespace {

struct Tally {
  Histogram latency;
  uint64_t requests = 0, reads = 0, wrong = 0, matched = 0, lost = 0;
  std::string failure;
};

// Each 50 ms: what was written meanwhile reaches the device (the same durability as the store it is compared with), and
// memory is looked at. Each 10 s the design saves its own state.
class Background {
 public:
  explicit Background(Design& design) : design_(design), thread_([this] { work(); }) {}
  ~Background() { stop(); }
  void stop() {
    {
      std::lock_guard<std::mutex> hold(lock_);
      stop_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  uint64_t peak() const { return peak_; }

 private:
  void work() {
    std::unique_lock<std::mutex> hold(lock_);
    for (int tick = 1; !wake_.wait_for(hold, std::chrono::milliseconds(50), [this] { return stop_; }); ++tick) {
      design_.sync();
      if (tick % 200 == 0) design_.save();
      peak_ = std::max(peak_, resident_bytes());
    }
    design_.sync();
    peak_ = std::max(peak_, resident_bytes());
  }

  Design& design_;
  std::mutex lock_;
  std::condition_variable wake_;
  bool stop_ = false;
  uint64_t peak_ = 0;
  std::thread thread_;  // last: it uses all of the above
};

bool right_locations(const Context& context, const Id* ids) {
  for (uint32_t i = 0; i < context.matched; ++i)
    if (std::memcmp(&context.locations[i * kLocationBytes], ids[i].bytes, kLocationBytes) != 0) return false;
  return true;
}

void serve(Design& design, const Requests& requests, const std::vector<uint32_t>& mine, bool sequential,
           Clock::time_point deadline, const std::atomic<bool>& stop, Tally* tally) {
  rocksdb::SetPerfLevel(rocksdb::PerfLevel::kEnableCount);
  Context context;
  for (const uint32_t i : mine) {
    const auto start = Clock::now();
    if (stop.load(std::memory_order_relaxed) || start >= deadline) return;
    const Request request = requests.at(i);
    context.reads = 0;
    design.match(request.ids, request.history, context);
    tally->latency.add(static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count()));
    tally->reads += context.reads;
    tally->matched += context.matched;
    if (context.matched > request.history || !right_locations(context, request.ids) ||
        (sequential && context.matched != request.expected))
      ++tally->wrong;
    if (sequential && context.matched < request.expected) tally->lost += request.expected - context.matched;
    design.insert(request.ids, request.history, request.total, context);
    ++tally->requests;
  }
}

// By session, in the order of their first requests.
std::vector<std::vector<uint32_t>> deal(const Requests& requests, int threads) {
  std::vector<std::vector<uint32_t>> hands(static_cast<size_t>(threads));
  std::unordered_map<uint32_t, size_t> thread_of;
  for (size_t i = 0; i < requests.size(); ++i) {
    const size_t next = thread_of.size() % hands.size();
    hands[thread_of.emplace(requests.at(i).session, next).first->second].push_back(static_cast<uint32_t>(i));
  }
  return hands;
}

void refuse_existing(const Config& config) {
  if (std::filesystem::exists(config.db) && !std::filesystem::is_empty(config.db))
    throw std::runtime_error(config.db + " is not empty");
}

}  // namespace

void run(const Config& config) {
  refuse_existing(config);
  const Requests requests(config.requests);
  const auto hands = deal(requests, config.threads);
  std::vector<Tally> tallies(hands.size());
  const uint64_t rss_before = resident_bytes();
  const std::unique_ptr<Design> design = Design::open(config);
  Background background(*design);
  std::atomic<bool> stop{false};
  const uint64_t written_before = written_bytes();
  const double cpu_before = cpu_seconds();
  const auto start = Clock::now();
  const auto deadline = start + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(std::min(config.seconds_max, 1e9)));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < hands.size(); ++i)
    threads.emplace_back([&, i] {
      try {
        serve(*design, requests, hands[i], config.threads == 1, deadline, stop, &tallies[i]);
      } catch (const std::exception& error) {
        tallies[i].failure = error.what();
        stop = true;
      }
    });
  for (auto& thread : threads) thread.join();
  const double seconds = ms_since(start) / 1e3;
  const double cpu = cpu_seconds() - cpu_before;
  const uint64_t rss = resident_bytes();
  background.stop();

  Tally all;
  for (const Tally& tally : tallies) {
    if (!tally.failure.empty()) throw std::runtime_error(tally.failure);
    all.latency.add(tally.latency);
    all.requests += tally.requests;
    all.reads += tally.reads;
    all.wrong += tally.wrong;
    all.matched += tally.matched;
    all.lost += tally.lost;
  }
  Json latency;
  latency.add("mean", all.latency.mean_us()).add("p50", all.latency.percentile_us(.5));
  latency.add("p99", all.latency.percentile_us(.99)).add("p999", all.latency.percentile_us(.999));
  Json out;
  out.add("requests", all.requests).add("seconds", seconds).add("latency_us", latency).add("reads", all.reads);
  out.add("cpu_seconds", cpu).add("rss_bytes", std::max(rss, background.peak())).add("rss_current_bytes", rss);
  out.add("rss_before_bytes", rss_before).add("written_bytes", written_bytes() - written_before);
  out.add("db_bytes", folder_bytes(config.db)).add("wrong", all.wrong).add("matched_blocks", all.matched);
  out.add("lost_blocks", all.lost).add("notes", design->notes());
  out.write(config.out);
}

void fill(const Config& config) {
  refuse_existing(config);
  const Requests requests(config.requests);
  {
    // Not closed: what a crash would leave is what is to be recovered from.
    Design* design = Design::open(config).release();
    Background background(*design);
    Context context;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Request request = requests.at(i);
      design->match(request.ids, request.history, context);
      design->insert(request.ids, request.history, request.total, context);
    }
    background.stop();
    design->save();
  }
  std::raise(SIGKILL);
}

void recover(const Config& config) {
  const Requests requests(config.probe);
  if (requests.size() == 0) throw std::runtime_error(config.probe + " is empty");
  const Request request = requests.at(0);
  const auto start = Clock::now();
  const std::unique_ptr<Design> design = Design::open(config);
  const double open_ms = ms_since(start);
  double loaded_ms = open_ms;
  if (design->loads_before_answering()) {
    design->load();
    loaded_ms = ms_since(start);
  }
  Context context;
  design->match(request.ids, request.history, context);
  const double first_match_ms = ms_since(start);
  if (!right_locations(context, request.ids)) throw std::runtime_error("wrong locations after recovery");
  if (!design->loads_before_answering() && config.design == "radix") {
    design->load();
    loaded_ms = ms_since(start);
  }
  Json out;
  out.add("open_ms", open_ms).add("first_match_ms", first_match_ms).add("loaded_ms", loaded_ms);
  out.add("matched", static_cast<uint64_t>(context.matched));
  out.add("expected", static_cast<uint64_t>(request.expected));
  out.write(config.out);
}

}  // namespace rocks
