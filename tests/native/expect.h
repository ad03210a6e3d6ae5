// A native test is a plain program: it prints what it expected and got, and its exit status says whether that was all
// right.
#pragma once

#include <cstdarg>
#include <cstdio>

namespace pcie_allreduce::test {

inline int failures = 0;

__attribute__((format(printf, 2, 3))) inline void expect(bool right, const char* format, ...) {
  if (right) return;
  if (++failures > 20) return;
  std::va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
}

inline int result() {
  if (failures > 0) std::printf("%d expectations failed\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace pcie_allreduce::test
