#include "host/shared_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <utility>

namespace pcie_allreduce::host {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

constexpr char kPrefix[] = "/pcie_allreduce-";
constexpr std::time_t kYoung = 60;  // seconds in which a creator has surely locked its file

std::string random_name() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) fail("getrandom");
  std::string name = kPrefix;
  for (const unsigned char byte : bytes) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

bool is_ours(const struct stat& status) {
  return S_ISREG(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & 07777) == 0600;
}

// Ranks that were all killed while they set up have left their names. Whoever holds a lock lives; the rest goes.
void remove_abandoned() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/dev/shm"), &::closedir);
  if (folder == nullptr) return;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string name = std::string("/") + entry->d_name;
    if (name.rfind(kPrefix, 0) != 0) continue;
    const Descriptor fd(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0));
    struct stat status{};
    if (fd.get() < 0 || ::fstat(fd.get(), &status) != 0 || !is_ours(status)) continue;
    if (std::time(nullptr) - status.st_mtime < kYoung) continue;
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) ::shm_unlink(name.c_str());
  }
}

char* map(int fd, std::size_t bytes, const std::string& name) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) fail("mapping " + std::to_string(bytes) + " bytes of shared memory " + name);
  return static_cast<char*>(data);
}

}  // namespace

SharedMemory SharedMemory::create(std::size_t bytes) {
  remove_abandoned();
  const std::string name = random_name();
  const int raw = ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (raw < 0) fail("creating shared memory " + name);
  Descriptor fd(raw);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    ::shm_unlink(name.c_str());
    fail("locking shared memory " + name);
  }
  // Allocated now: a full /dev/shm is an error here, and a bus error in the middle of a call otherwise.
  const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  if (error != 0) {
    ::shm_unlink(name.c_str());
    errno = error;
    fail("reserving " + std::to_string(bytes) + " bytes in /dev/shm (is it large enough? containers: --shm-size)");
  }
  return SharedMemory(name, fd.release(), bytes, true);
}

SharedMemory SharedMemory::open(const std::string& name, std::size_t bytes) {
  if (name.rfind(kPrefix, 0) != 0 || name.find('/', 1) != std::string::npos) {
    throw std::runtime_error("shared memory name " + name + " is not one of this package");
  }
  const int raw = ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0);
  if (raw < 0) {
    fail("opening a peer's shared memory " + name +
         " (ranks in different containers need a shared /dev/shm: --ipc=host)");
  }
  Descriptor fd(raw);
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) fail("inspecting " + name);
  if (!is_ours(status)) {
    throw std::runtime_error("shared memory " + name + " belongs to user " + std::to_string(status.st_uid) +
                             " with mode " + std::to_string(status.st_mode & 07777) + ", expected user " +
                             std::to_string(::geteuid()) + " and mode 384 (0600)");
  }
  if (static_cast<std::size_t>(status.st_size) != bytes) {
    throw std::runtime_error("shared memory " + name + " has " + std::to_string(status.st_size) + " bytes, expected " +
                             std::to_string(bytes));
  }
  return SharedMemory(name, fd.release(), bytes, false);
}

SharedMemory::SharedMemory(std::string name, int fd, std::size_t bytes, bool owner)
    : name_(std::move(name)), fd_(fd), bytes_(bytes), linked_(owner), creator_(owner ? ::getpid() : 0) {
  try {
    data_ = map(fd_, bytes_, name_);
  } catch (...) {
    unlink();
    ::close(fd_);
    throw;
  }
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(linked_, other.linked_);
  std::swap(creator_, other.creator_);
  return *this;
}

SharedMemory::~SharedMemory() {
  unlink();
  close();
}

void SharedMemory::unlink() {
  if (linked_) ::shm_unlink(name_.c_str());
  linked_ = false;
}

void SharedMemory::close() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
  data_ = nullptr;
  // The lock is the open file's, which a child that was forked meanwhile shares: it goes now, and not with the child.
  if (fd_ >= 0 && creator_ == ::getpid()) ::flock(fd_, LOCK_UN);
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

bool SharedMemory::creator_gone() const {
  if (fd_ < 0 || ::flock(fd_, LOCK_SH | LOCK_NB) != 0) return fd_ < 0;
  ::flock(fd_, LOCK_UN);
  return true;
}

}  // namespace pcie_allreduce::host
