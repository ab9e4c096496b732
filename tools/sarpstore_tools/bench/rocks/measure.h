// What is measured: latencies, this process's memory, CPU time and writes, the size of a folder; and the JSON of it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

namespace rocks {

using Clock = std::chrono::steady_clock;
inline double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Nanoseconds in buckets of 1/64 of a power of two: percentiles are at most 1.6 % off, the mean is exact.
class Histogram {
 public:
  void add(uint64_t ns);
  void add(const Histogram& other);
  double mean_us() const;
  double percentile_us(double share) const;

 private:
  std::array<uint64_t, 64 * 48> counts_{};
  uint64_t total_ = 0, sum_ = 0;
};

uint64_t resident_bytes();    // anonymous memory: the mapped request file and program text are left out
uint64_t written_bytes();     // what this process has caused to be written to storage
double cpu_seconds();         // user and system, all threads
uint64_t folder_bytes(const std::string& path);

class Json {
 public:
  Json& add(const std::string& name, double value);
  Json& add(const std::string& name, uint64_t value);
  Json& add(const std::string& name, const std::string& value);
  Json& add(const std::string& name, const Json& value);
  std::string text() const { return "{" + text_ + "}"; }
  void write(const std::string& path) const;

 private:
  Json& raw(const std::string& name, const std::string& value);
  std::string text_;
};

}  // namespace rocks
