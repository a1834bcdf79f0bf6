#pragma once

#include <cstdint>
#include <string>

#include <cairn/status.h>

namespace cairn::bench {

/// Touches and frees memory, so that the host has given it back before it is needed: pages that a
/// virtual machine's host took away cost several times a page fault.
void TouchAndFree(std::uint64_t bytes);

/// Lets the disk finish what earlier contenders left behind: write-back, journal, discards.
void Settle();

/// Empties the page cache and the caches of names; needs root.
Status DropCaches();

/// CPU seconds that other programs (not this process, not kernel threads) and the hypervisor have
/// used so far.
double OthersCpuSeconds();
double OwnCpuSeconds();
double LoadAverage();

/// Peak resident bytes of this process since ResetPeakMemory, and the resident bytes now.
std::uint64_t PeakMemory();
std::uint64_t ResidentMemory();
Status ResetPeakMemory();

}  // namespace cairn::bench
