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
  budget.memtables = static_cast<uint64_t>(config.tuned("memtables", config.design == "blockhash" ? .2 : .3) * static_cast<double>(config.cache_bytes));
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
  lru.num_shard_bits = budget.rocksdb < (4u << 20) ? 0 : 2;
  lru.strict_capacity_limit = false;  // strict, a cache this small fails reads when 42 threads pin their blocks
  lru.metadata_charge_policy = rocksdb::kFullChargeCacheMetadata;
  table.block_cache = *cache = rocksdb::NewLRUCache(lru);
  table.cache_index_and_filter_blocks = true;
  options.write_buffer_manager = std::make_shared<rocksdb::WriteBufferManager>(budget.memtables, charged ? *cache : nullptr);
  // A memtable that is being flushed counts too: two of them fit.
  options.write_buffer_size = std::clamp<uint64_t>(budget.memtables / 2, 64u << 10, 64u << 20);
  options.max_write_buffer_number = 3;

  options.create_if_missing = true;
  options.use_direct_reads = true;
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
    if (config.tuned("universal", 0) > 0) options.compaction_style = rocksdb::kCompactionStyleUniversal;
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
