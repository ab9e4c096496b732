// The request file: magic "SRPQ0001", u64 count, then per request u32 session, u32 history blocks h, u32 total
// blocks n, u32 expected, n x 16 bytes of block ids; little-endian. A block's location is its id's first 14 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace rocks {

constexpr size_t kIdBytes = 16;
constexpr size_t kLocationBytes = 14;
constexpr size_t kBlockBytes = kIdBytes + kLocationBytes;
constexpr uint32_t kWindow = 64;

struct Id {
  uint8_t bytes[kIdBytes];
};
static_assert(sizeof(Id) == kIdBytes, "ids are read where they lie in the file");

inline bool same(const Id& a, const void* b) { return std::memcmp(a.bytes, b, kIdBytes) == 0; }

// Ids are hashes already: any eight of their bytes serve as one.
inline uint64_t hash_of(const Id& id) {
  uint64_t value;
  std::memcpy(&value, id.bytes + 4, sizeof value);
  return value;
}

struct Request {
  uint32_t session, history, total, expected;
  const Id* ids;
};

// The whole file mapped and read ahead, so that reading it is no part of what is timed.
class Requests {
 public:
  explicit Requests(const std::string& path);
  ~Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  size_t size() const { return offsets_.size(); }
  Request at(size_t i) const;

 private:
  const uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
  std::vector<uint64_t> offsets_;
};

}  // namespace rocks
