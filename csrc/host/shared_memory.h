// One rank's slab in POSIX shared memory. Mode 0600, an unguessable name, and the name is gone as soon as every rank
// has mapped it: nothing is left behind, however the processes end. The creator holds a lock on the file while it takes
// part, which the kernel releases when the process dies, in whatever container or PID namespace it ran.
#pragma once

#include <cstddef>
#include <string>

namespace pcie_allreduce::host {

class SharedMemory {
 public:
  static SharedMemory create(std::size_t bytes);
  // Refuses a segment of another user, another mode or another size: a handle is data from a peer, not a promise.
  static SharedMemory open(const std::string& name, std::size_t bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  void unlink();              // idempotent
  void close();               // unmaps, gives up the lock; idempotent
  bool creator_gone() const;  // of an opened segment: closed by its creator, or its process has ended
  char* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  const std::string& name() const { return name_; }

 private:
  SharedMemory(std::string name, int fd, std::size_t bytes, bool owner);
  std::string name_;
  int fd_ = -1;
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool linked_ = false;
  int creator_ = 0;  // the process whose lock it is; 0: another one's
};

}  // namespace pcie_allreduce::host
