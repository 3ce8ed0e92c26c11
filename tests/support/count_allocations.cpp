// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Replaces operator new and delete of the program by ones that count.
#include <atomic>
#include <cstdlib>
#include <new>
#include <tests/support/count_allocations.hpp>

namespace {
std::atomic<long> count = 0;
} // namespace

long support::allocations() noexcept {
  return count;
}

void* operator new(std::size_t size) {
  ++count;
  if (void* const memory = std::malloc(size))
    return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  ++count;
  auto const unit = static_cast<std::size_t>(alignment);
  if (void* const memory = std::aligned_alloc(unit, (size + unit - 1) / unit * unit))
    return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
