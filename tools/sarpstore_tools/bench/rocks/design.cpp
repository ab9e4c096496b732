#include "design.h"

#include <rocksdb/write_batch.h>

#include <algorithm>
#include <filesystem>

namespace rocks {

Design::Design(const Config& config) : config_(config), budget_(budget_of(config)) {
  std::filesystem::create_directories(config.db);
  rocksdb::DB* db = nullptr;
  check(rocksdb::DB::Open(options_of(config, budget_, &cache_), config.db + "/rocksdb", &db), "opening RocksDB");
  db_.reset(db);
  rocksdb::ReadOptions reads;
  reads.async_io = config.best();
  reads.fill_cache = config.tuned("fill_cache", 1) > 0;
  // Helper threads pay only while the request threads leave the device idle.
  const int helpers = config.best() && config.threads < 4 ? static_cast<int>(config.tuned("helpers", 7)) : 0;
  const double share = config.tuned("share", config.design == "radix" ? 2 : 8);
  fetcher_ = std::make_unique<Fetcher>(db, reads, helpers, static_cast<size_t>(share));
}

Design::~Design() {
  fetcher_.reset();
  if (db_) db_->Close();
}

std::unique_ptr<Design> Design::open(const Config& config) {
  if (config.design == "blockhash") return make_blockhash(config);
  return config.design == "segmenthash" ? make_segmenthash(config) : make_radix(config);
}

void Design::write(rocksdb::WriteBatch& batch) {
  // In the log before it is acknowledged, on the device within 50 ms: what the harness's SyncWAL sees to.
  rocksdb::WriteOptions options;
  options.sync = false;
  check(db_->Write(options, &batch), "Write");
}

Design::Stripe& Design::stripe_of(const Id* ids, uint32_t window) {
  const uint64_t parent = window == 0 ? 0 : hash_of(ids[window * kWindow - 1]);
  return stripes_[parent % stripes_.size()];
}

std::string Design::notes() const {
  std::string all;
  for (const char* name : {"rocksdb.levelstats", "rocksdb.estimate-pending-compaction-bytes",
                           "rocksdb.cur-size-all-mem-tables", "rocksdb.block-cache-usage",
                           "rocksdb.block-cache-pinned-usage", "rocksdb.estimate-table-readers-mem"}) {
    std::string value;
    if (!db_->GetProperty(name, &value)) continue;
    std::replace(value.begin(), value.end(), '\n', ';');
    all += std::string(name) + " " + value + " | ";
  }
  return all;
}

uint32_t common(const uint8_t* record, uint32_t blocks, const Id* ids, uint32_t limit) {
  const uint32_t most = std::min(blocks, limit);
  uint32_t run = 0;
  while (run < most && same(ids[run], record + run * kIdBytes)) ++run;
  return run;
}

void pack(const Id* ids, uint32_t blocks, std::string* record) {
  record->resize(blocks * kBlockBytes);
  std::memcpy(&(*record)[0], ids, blocks * kIdBytes);
  char* location = &(*record)[blocks * kIdBytes];
  for (uint32_t i = 0; i < blocks; ++i, location += kLocationBytes)
    std::memcpy(location, ids[i].bytes, kLocationBytes);
}

}  // namespace rocks
