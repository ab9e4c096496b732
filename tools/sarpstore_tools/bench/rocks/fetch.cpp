#include "fetch.h"

#include <rocksdb/perf_context.h>
#include <rocksdb/perf_level.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace rocks {

void check(const rocksdb::Status& status, const char* what) {
  if (!status.ok()) throw std::runtime_error(std::string(what) + ": " + status.ToString());
}

void Batch::clear() {
  keys.clear();
  for (auto& value : values) value.Reset();
}

namespace {

// By this thread so far. Records in blob files are read beside the tables' blocks.
uint64_t device_reads() {
  const rocksdb::PerfContext* context = rocksdb::get_perf_context();
  return context->block_read_count + context->blob_read_count;
}

}  // namespace

struct Fetcher::Work {
  Batch* batch;
  const rocksdb::Snapshot* snapshot;
  size_t begin, end;
  uint64_t reads = 0;
  std::atomic<size_t>* left;
  std::mutex* lock;
  std::condition_variable* done;
};

Fetcher::Fetcher(rocksdb::DB* db, rocksdb::ReadOptions options, int helpers, size_t share)
    : db_(db), options_(std::move(options)), share_(share) {
  for (int i = 0; i < helpers; ++i) helpers_.emplace_back([this] { help(); });
}

Fetcher::~Fetcher() {
  {
    std::lock_guard<std::mutex> hold(lock_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& helper : helpers_) helper.join();
}

bool Fetcher::one(const Id& id, rocksdb::PinnableSlice* value, uint64_t* reads) {
  const uint64_t before = device_reads();
  value->Reset();
  const rocksdb::Status status =
      db_->Get(options_, db_->DefaultColumnFamily(), {reinterpret_cast<const char*>(id.bytes), kIdBytes}, value);
  *reads += device_reads() - before;
  if (!status.ok() && !status.IsNotFound()) check(status, "Get");
  return status.ok();
}

void Fetcher::part(Work& work) {
  Batch& batch = *work.batch;
  const uint64_t before = device_reads();
  rocksdb::ReadOptions options = options_;
  options.snapshot = work.snapshot;
  db_->MultiGet(options, db_->DefaultColumnFamily(), work.end - work.begin, &batch.keys[work.begin],
                &batch.values[work.begin], &batch.statuses[work.begin]);
  work.reads = device_reads() - before;
}

void Fetcher::many(Batch& batch, uint64_t* reads) {
  const size_t n = batch.keys.size();
  if (n == 0) return;
  if (batch.values.size() < n) batch.values.resize(n);
  if (batch.statuses.size() < n) batch.statuses.resize(n);
  const size_t parts = std::min(helpers_.size() + 1, std::max<size_t>(1, n / share_));
  std::atomic<size_t> left{parts};
  std::mutex lock;
  std::condition_variable done;
  // One MultiGet sees one state; all parts of one batch must, too.
  const rocksdb::Snapshot* snapshot = parts > 1 ? db_->GetSnapshot() : nullptr;
  std::vector<Work> works;
  works.reserve(parts);
  for (size_t i = 0; i < parts; ++i)
    works.push_back(Work{&batch, snapshot, n * i / parts, n * (i + 1) / parts, 0, &left, &lock, &done});
  if (parts > 1) {
    {
      std::lock_guard<std::mutex> hold(lock_);
      for (size_t i = 1; i < parts; ++i) queue_.push_back(&works[i]);
    }
    wake_.notify_all();
  }
  part(works[0]);
  if (parts > 1) {
    left.fetch_sub(1);
    std::unique_lock<std::mutex> hold(lock);
    done.wait(hold, [&] { return left.load() == 0; });
    db_->ReleaseSnapshot(snapshot);
  }
  for (const Work& work : works) *reads += work.reads;
  for (size_t i = 0; i < n; ++i)
    if (!batch.statuses[i].ok() && !batch.statuses[i].IsNotFound()) check(batch.statuses[i], "MultiGet");
}

void Fetcher::help() {
  rocksdb::SetPerfLevel(rocksdb::PerfLevel::kEnableCount);
  std::unique_lock<std::mutex> hold(lock_);
  for (;;) {
    wake_.wait(hold, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Work* work = queue_.front();
    queue_.pop_front();
    hold.unlock();
    part(*work);
    {
      // Under the asker's lock to the end: it frees all this as soon as it sees zero.
      std::lock_guard<std::mutex> asker(*work->lock);
      if (work->left->fetch_sub(1) == 1) work->done->notify_one();
    }
    hold.lock();
  }
}

}  // namespace rocks
