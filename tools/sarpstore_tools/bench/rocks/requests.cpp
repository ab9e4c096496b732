#include "requests.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdexcept>

namespace rocks {

namespace {
constexpr size_t kHeader = 16, kRequestHeader = 16;
}

Requests::Requests(const std::string& path) {
  int file = ::open(path.c_str(), O_RDONLY);
  struct stat about {};
  if (file < 0 || ::fstat(file, &about) != 0) throw std::runtime_error("cannot open " + path);
  bytes_ = static_cast<size_t>(about.st_size);
  void* map = bytes_ ? ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0) : MAP_FAILED;
  ::close(file);
  if (map == MAP_FAILED) throw std::runtime_error("cannot map " + path);
  data_ = static_cast<const uint8_t*>(map);
  if (bytes_ < kHeader || std::memcmp(data_, "SRPQ0001", 8) != 0)
    throw std::runtime_error(path + " is not a request file");
  uint64_t count;
  std::memcpy(&count, data_ + 8, sizeof count);
  size_t offset = kHeader;
  for (uint64_t i = 0; i < count; ++i) {
    if (bytes_ - offset < kRequestHeader) throw std::runtime_error(path + " is cut short");
    offsets_.push_back(offset);
    const Request request = at(i);
    offset += kRequestHeader;
    if (request.history > request.total || (bytes_ - offset) / kIdBytes < request.total)
      throw std::runtime_error(path + " is cut short or damaged");
    offset += request.total * kIdBytes;
  }
}

Requests::~Requests() {
  if (data_) ::munmap(const_cast<uint8_t*>(data_), bytes_);
}

Request Requests::at(size_t i) const {
  const uint8_t* here = data_ + offsets_[i];
  uint32_t head[4];
  std::memcpy(head, here, sizeof head);
  return {head[0], head[1], head[2], head[3], reinterpret_cast<const Id*>(here + kRequestHeader)};
}

}  // namespace rocks
