#pragma once

#include <array>
#include <string_view>

#include "checkpoint/environment.h"

namespace cairn::interleaving {

struct Rule {
  std::string_view name;
  bool ProtocolRules::* on;
};

/// Every switch of ProtocolRules but for those of increments, which the crash enumeration
/// (increments_go_first) and the tests of compact (judge_by_commit_generation) miss.
inline constexpr std::size_t kRulesOfIncrements = 2;
/// Three openings at once: too many turns for a search, so it is missed by a schedule (holes_test).
inline constexpr std::size_t kRulesOfSchedules = 1;
/// A repository that is deleted and made again: missed by replaced_directory_test.
inline constexpr std::size_t kRulesOfReplacement = 1;
/// Those that only matter where manifests are copied onto shelves, and one that matters there in
/// another way.
inline constexpr std::size_t kRulesOfShelves = 1;
inline constexpr std::array kShelfRules = {
    Rule{"compare_tags", &ProtocolRules::compare_tags},
    Rule{"notes_before_manifest", &ProtocolRules::notes_before_manifest},
};
inline constexpr std::array kRules = {
    Rule{"fence_before_listing", &ProtocolRules::fence_before_listing},
    Rule{"create_only_records", &ProtocolRules::create_only_records},
    Rule{"readers_obey_seals", &ProtocolRules::readers_obey_seals},
    Rule{"reread_fence_before_ack", &ProtocolRules::reread_fence_before_ack},
    Rule{"reread_fence_before_delete", &ProtocolRules::reread_fence_before_delete},
    Rule{"remove_note_first", &ProtocolRules::remove_note_first},
    Rule{"retire_names", &ProtocolRules::retire_names},
    Rule{"check_part_identity", &ProtocolRules::check_part_identity},
    Rule{"latest_by_sequence", &ProtocolRules::latest_by_sequence},
    Rule{"reread_manifest_after_note", &ProtocolRules::reread_manifest_after_note},
    Rule{"reread_when_moved", &ProtocolRules::reread_when_moved},
    Rule{"notes_before_manifest", &ProtocolRules::notes_before_manifest},
    Rule{"notes_name_checkpoint", &ProtocolRules::notes_name_checkpoint},
};
static_assert(sizeof(ProtocolRules) == (kRules.size() + kRulesOfIncrements + kRulesOfSchedules +
                                        kRulesOfReplacement + kRulesOfShelves) *
                                           sizeof(bool),
              "a switch is not listed");

}  // namespace cairn::interleaving
