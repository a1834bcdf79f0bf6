#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::names {

/// Every name that the engine gives to an object of a repository.

inline constexpr std::string_view kRepository = "cairn.json";
inline constexpr std::string_view kLock = "generations/lock";
inline constexpr std::string_view kGenerations = "generations";
inline constexpr std::string_view kJoins = "generations/joins";
inline constexpr std::string_view kShelves = "generations/shelves";
inline constexpr std::string_view kReserve = "generations/reserve";
inline constexpr std::string_view kPool = "pool";
inline constexpr std::string_view kManifest = "manifest.json";
inline constexpr std::string_view kMarker = ".cairn-attempt";
inline constexpr std::string_view kAbandoned = "abandoned.json";
inline constexpr std::string_view kModel = "__model__";
inline constexpr std::string_view kIndex = "__model__/model.safetensors.index.json";
inline constexpr std::string_view kTables = "__lookup_table__";
inline constexpr std::string_view kStateTensors = "state.safetensors";
inline constexpr std::string_view kFiles = "files";

std::string Fence(std::uint64_t generation);
std::string Seal(std::uint64_t generation);
std::string End(std::uint64_t generation);
std::string Start(std::uint64_t generation, std::uint64_t number);  // number from 1
std::string AttemptsOf(std::uint64_t generation);
std::string Attempt(std::uint64_t generation, std::uint64_t number);
std::string LastStep(std::uint64_t generation);  // where trainers agreed to end
std::string Join(std::string_view participant, std::string_view uuid);
std::string Part(std::string_view directory, std::string_view participant);
std::string Note(std::string_view directory, std::uint64_t number);
std::string Participant(std::string_view kind, int rank);  // "rank_3"

std::string Path(std::string_view directory, std::string_view name);  // with a '/' between

/// What participants are called unless somebody says otherwise: "rank_3", "trainer_0", "ps_1".
bool IsUsualParticipant(std::string_view name);

/// "pool/7", where a generation keeps files for its next save, and "pool/7/<uuid>", one of them.
/// What else lies there is somebody's.
bool IsPool(std::string_view name);
bool IsRecycled(std::string_view name);

/// The generation of a name directly under generations/, by kind; nullopt for anything else.
std::optional<std::uint64_t> GenerationOfFence(std::string_view file_name);
std::optional<std::uint64_t> GenerationOfSeal(std::string_view file_name);
std::optional<std::uint64_t> GenerationOfEnd(std::string_view file_name);
std::optional<std::uint64_t> GenerationOfStart(std::string_view file_name);  // any of them
std::optional<std::uint64_t> GenerationOfDirectory(std::string_view name);   // what it announced
/// The number of a note in notes/; nullopt for what somebody else put there.
std::optional<std::uint64_t> NumberOfNote(std::string_view file_name);
/// The same of an attempt in attempts/.
std::optional<std::uint64_t> NumberOfAttempt(std::string_view file_name);

/// "checkpoint_000040", "increment_000060"; serial naming "checkpoint_7"; copies "-2", "-3", ….
std::string CheckpointDirectory(bool increment, bool serial, std::int64_t number, int copy);

/// Whether CheckpointDirectory gives such a name. What lies in a directory of another name is what
/// its manifest says, and may be restored; but somebody copied or renamed it, so it is theirs:
/// neither retention nor the sweep deletes it.
bool IsCheckpointDirectory(std::string_view name);

}  // namespace cairn::names
