#include "measure.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace rocks {

namespace {

int bucket_of(uint64_t ns) {
  if (ns < 64) return static_cast<int>(ns);
  const int shift = 63 - __builtin_clzll(ns) - 6;
  return std::min(64 * 48 - 1, 64 * (shift + 1) + static_cast<int>((ns >> shift) & 63));
}

double middle_of(int bucket) {
  if (bucket < 64) return bucket;
  const int shift = bucket / 64 - 1;
  return (static_cast<double>(64 + bucket % 64) + .5) * static_cast<double>(1ull << shift);
}

uint64_t field(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;)
    if (word == name) {
      uint64_t value = 0;
      file >> value;
      return value;
    }
  return 0;
}

}  // namespace

void Histogram::add(uint64_t ns) {
  ++counts_[static_cast<size_t>(bucket_of(ns))];
  ++total_;
  sum_ += ns;
}

void Histogram::add(const Histogram& other) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  total_ += other.total_;
  sum_ += other.sum_;
}

double Histogram::mean_us() const { return total_ ? static_cast<double>(sum_) / static_cast<double>(total_) / 1e3 : 0; }

double Histogram::percentile_us(double share) const {
  const double wanted = share * static_cast<double>(total_);
  uint64_t seen = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (seen && static_cast<double>(seen) >= wanted) return middle_of(static_cast<int>(i)) / 1e3;
  }
  return 0;
}

uint64_t resident_bytes() { return field("/proc/self/status", "RssAnon:") * 1024; }

uint64_t written_bytes() { return field("/proc/self/io", "write_bytes:"); }

double cpu_seconds() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

uint64_t folder_bytes(const std::string& path) {
  uint64_t bytes = 0;
  std::error_code gone;  // compaction deletes files meanwhile
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file(gone)) continue;
    const uint64_t size = entry.file_size(gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

Json& Json::raw(const std::string& name, const std::string& value) {
  text_ += (text_.empty() ? "\"" : ", \"") + name + "\": " + value;
  return *this;
}

Json& Json::add(const std::string& name, double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.9g", value);
  return raw(name, text);
}

Json& Json::add(const std::string& name, uint64_t value) { return raw(name, std::to_string(value)); }

Json& Json::add(const std::string& name, const std::string& value) {
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 32 ? ' ' : c;
  }
  return raw(name, quoted + "\"");
}

Json& Json::add(const std::string& name, const Json& value) { return raw(name, value.text()); }

void Json::write(const std::string& path) const {
  std::ofstream file(path);
  file << text() << "\n";
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

}  // namespace rocks
