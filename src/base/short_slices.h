#pragma once

namespace cairn {

/// Asks the scheduler to run the calling thread, and those it starts, soon after they wake, and for
/// a short time then. For threads that feed a device and mostly wait: beside a computation on all
/// cores they would otherwise wait for the end of somebody's slice at each turn, and the device for
/// them. It gives them no more of the processor than before. Linux before 6.12 ignores it.
void PreferShortSlices();

}  // namespace cairn
