// The choices for `best`, and what was measured for them: 1,000 sessions of 8 turns, 310,000 blocks, 260 blocks of
// history on average, 20 % of the histories rewritten near their end, a budget of 1 MB (10 % of 30 bytes a block),
// 4 threads where nothing else is said, 2 cores shared with other work. Throughput varied by 1.5x, so what decided is
// reads, CPU time and bytes written, or repeated runs in turn. blockhash: what it reached in 25 s. RocksDB 7.8.3 as
// Debian builds it. All but the first row without blobs. Each can be measured again with --tune name=value.
//   blobs      8 threads, without / with: segmenthash 1,334 and 1,433 / 1,634 and 1,953 requests/s, radix 1,355 and
//              1,724 / 1,728 and 2,089; written 173 / 55 MB and 152 / 49 MB. On for both.
//   mem_bloom  segmenthash .56 -> .46 ms of CPU a request, radix no difference. On.
//   memtables  share of the budget, .1 / .2 / .35: segmenthash 182 / 167 / 126 MB written, radix 173 / 149 / 112; reads a
//              match 5.0 / 5.0 / 5.3 and 4.2 / 4.2 / 4.4. So .3; blockhash .2 (.35: no difference).
//   own        share of the record, node or row cache: segmenthash .1 / .4 / .7: 4.9 / 5.0 / 5.2 reads, radix 4.1 / 4.2 /
//              4.4; blockhash 0 / .2 / .4 / .6: 155 / 129 / 123 / 124. So .2, .3 and .4.
//   admit      1 / 4 / 16: reads within 4 % of one another for all. 4, blockhash 8.
//   hits       no filters on the last level: segmenthash 36 reads instead of 5, blockhash 142 instead of 123. Off.
//   ribbon     neither fewer reads nor less CPU than bloom. Off. 6 bits a key instead of 10: blockhash 130 reads, not 123.
//   universal  blockhash, 8 threads: 243 and 251 requests/s, level 232 and 234. On there; others no difference.
//   l0         2 instead of 4: 39 and 35 % more bytes written, no fewer reads.
//   helpers    1 thread, 0 / 7 helpers: blockhash 83 / 122 requests/s, radix (share 2, blobs) 690 / 877, segmenthash mean
//              latency 1.02 / .88 ms. On below 4 threads: without liburing MultiGet reads one block after another.
//   batch      blockhash 64 / 128 / 512: 129 / 171 / 155 requests/s; 256 as 128. hash_index, fill_cache: no difference.
//   buffers    of compactions and files: about 50 MB resident with RocksDB's defaults, 11 with these.
//
// Debian builds this library without NDEBUG (assertions and sync points stay in), without SSE4.2 and AVX2, and without
// liburing. For figures to be published link a release build with liburing: nothing here needs to change for it.
#include "options.h"

#include <rocksdb/cache.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/write_buffer_manager.h>

#include <algorithm>
#include <stdexcept>

namespace rocks {

double Config::tuned(const std::string& name, double otherwise) const {
  const auto found = tune.find(name);
  return found == tune.end() ? otherwise : found->second;
}

Config parse(int argc, char** argv) {
  Config config;
  if (argc < 2) throw std::invalid_argument("usage: rocks_bench run|fill|recover --design D --variant V --db DIR …");
  config.mode = argv[1];
  for (int i = 2; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 >= argc) throw std::invalid_argument(name + " needs a value");
    const std::string value = argv[i + 1];
    if (name == "--design") config.design = value;
    else if (name == "--variant") config.variant = value;
    else if (name == "--requests") config.requests = value;
    else if (name == "--db") config.db = value;
    else if (name == "--out") config.out = value;
    else if (name == "--probe") config.probe = value;
    else if (name == "--threads") config.threads = std::stoi(value);
    else if (name == "--cache-bytes") config.cache_bytes = std::stoull(value);
    else if (name == "--seconds-max") config.seconds_max = std::stod(value);
    else if (name == "--tune") {
      const size_t equals = value.find('=');
      if (equals == std::string::npos) throw std::invalid_argument("--tune takes name=value");
      config.tune[value.substr(0, equals)] = std::stod(value.substr(equals + 1));
    } else throw std::invalid_argument("unknown option " + name);
  }
  const auto among = [](const std::string& what, const std::string& value, std::initializer_list<const char*> all) {
    if (std::find(all.begin(), all.end(), value) == all.end())
      throw std::invalid_argument("unknown " + what + " '" + value + "'");
  };
  among("mode", config.mode, {"run", "fill", "recover"});
  among("design", config.design, {"blockhash", "segmenthash", "radix"});
  among("variant", config.variant, {"paper", "best"});
  if (config.db.empty()) throw std::invalid_argument("--db is missing");
  if (config.mode != "recover" && config.requests.empty()) throw std::invalid_argument("--requests is missing");
  if (config.mode == "recover" && config.probe.empty()) throw std::invalid_argument("--probe is missing");
  if (config.mode != "fill" && config.out.empty()) throw std::invalid_argument("--out is missing");
  if (config.threads < 1) throw std::invalid_argument("--threads must be at least 1");
  if (config.cache_bytes < 64u << 10) throw std::invalid_argument("--cache-bytes must be at least 65536");
  return config;
}

Budget budget_of(const Config& config) {
  double own = 0;
  if (config.design == "radix") own = config.best() ? .3 : .5;
  else if (config.best()) own = config.design == "blockhash" ? .4 : .2;
  own = config.tuned("own", own);
  Budget budget{};
  budget.own = static_cast<uint64_t>(own * static_cast<double>(config.cache_bytes));
  budget.rocksdb = config.cache_bytes - budget.own;
  const double memtables = config.tuned("memtables", config.design == "blockhash" ? .2 : .3);
  budget.memtables = static_cast<uint64_t>(memtables * static_cast<double>(config.cache_bytes));
  return budget;
}

rocksdb::Options options_of(const Config& config, const Budget& budget, std::shared_ptr<rocksdb::Cache>* cache) {
  rocksdb::Options options;
  rocksdb::BlockBasedTableOptions table;
  const bool best = config.best(), blocks = config.design == "blockhash";

  // Everything below counts against one cache: data, index and filter blocks, and the memtables.
  rocksdb::LRUCacheOptions lru;
  // Memtables are charged to the cache in steps of 256 KiB. In a small budget their share is set apart instead.
  const bool charged = budget.rocksdb >= (8u << 20);
  lru.capacity = charged ? budget.rocksdb : budget.rocksdb - budget.memtables;
  if (config.mode == "fill") lru.capacity = 256u << 20;  // not measured: only what it leaves behind is
  lru.num_shard_bits = budget.rocksdb < (4u << 20) ? 0 : 2;
  lru.strict_capacity_limit = false;  // strict, a cache this small fails reads when 42 threads pin their blocks
  lru.metadata_charge_policy = rocksdb::kFullChargeCacheMetadata;
  table.block_cache = *cache = rocksdb::NewLRUCache(lru);
  table.cache_index_and_filter_blocks = true;
  options.write_buffer_manager =
      std::make_shared<rocksdb::WriteBufferManager>(budget.memtables, charged ? *cache : nullptr);
  // A memtable that is being flushed counts too: two of them fit.
  options.write_buffer_size = std::clamp<uint64_t>(budget.memtables / 2, 64u << 10, 64u << 20);
  options.max_write_buffer_number = 3;

  options.create_if_missing = true;
  options.use_direct_reads = config.mode != "fill";
  options.use_direct_io_for_flush_and_compaction = true;
  options.compression = rocksdb::kNoCompression;  // ids are hashes: nothing to compress
  options.max_background_jobs = 4;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.info_log_level = rocksdb::WARN_LEVEL;

  // Paper, blockhash: RocksDB's defaults, no filters. The two others probe keys that are absent as part of
  // their method, so that without filters a probe is a read: they have them in both variants.
  const double bits = config.tuned("bits", best || !blocks ? 10 : 0);
  if (bits > 0)
    table.filter_policy.reset(config.tuned("ribbon", 0) > 0 ? rocksdb::NewRibbonFilterPolicy(bits)
                                                            : rocksdb::NewBloomFilterPolicy(bits));
  if (best) {
    table.format_version = 5;
    table.block_size = static_cast<size_t>(config.tuned("block_size", 4096));
    table.block_align = config.tuned("align", 1) > 0;  // a data block is one page: one aligned direct read
    table.optimize_filters_for_memory = true;
    table.cache_index_and_filter_blocks_with_high_priority = true;
    if (config.tuned("pin", 1) > 0) {
      table.metadata_cache_options.unpartitioned_pinning = rocksdb::PinningTier::kAll;
      table.metadata_cache_options.top_level_index_pinning = rocksdb::PinningTier::kAll;
    }
    if (config.tuned("hash_index", 0) > 0) {
      table.data_block_index_type = rocksdb::BlockBasedTableOptions::kDataBlockBinaryAndHash;
      table.data_block_hash_table_util_ratio = .75;
    }
    options.optimize_filters_for_hits = config.tuned("hits", 0) > 0;
    options.level_compaction_dynamic_level_bytes = true;
    options.target_file_size_base =
        static_cast<uint64_t>(config.tuned("file_mb", 8) * static_cast<double>(1u << 20));
    options.max_bytes_for_level_base = std::max<uint64_t>(4 * options.write_buffer_size, 4u << 20);
    options.level0_file_num_compaction_trigger = static_cast<int>(config.tuned("l0", 4));
    // Absent keys, and those long since flushed, do not search the memtables' skip lists.
    options.memtable_prefix_bloom_size_ratio = config.tuned("mem_bloom", .1);
    options.memtable_whole_key_filtering = true;
    // Compactions here are of a few MB: buffers of RocksDB's default sizes would be most of the memory.
    options.compaction_readahead_size = 256u << 10;
    options.writable_file_max_buffer_size = 256u << 10;
    options.max_open_files = -1;
    options.skip_stats_update_on_db_open = true;
    options.skip_checking_sst_file_sizes_on_db_open = true;
    options.avoid_flush_during_recovery = true;
    if (config.tuned("universal", blocks) > 0) options.compaction_style = rocksdb::kCompactionStyleUniversal;
    if (config.tuned("blobs", !blocks) > 0) {
      // Records of more than 8 blocks lie in blob files: compaction moves keys only.
      options.enable_blob_files = true;
      options.min_blob_size = 256;
      options.blob_file_size = 16u << 20;
      options.enable_blob_garbage_collection = true;
    }
  }
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace rocks
