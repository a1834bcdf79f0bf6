#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <cairn/checkpoint_manager.h>
#include <cairn/status.h>

#include "bench/rounds.h"
#include "bench/state.h"

/// The benchmarks, one function each; run.py says what is asked of their figures.
namespace cairn::bench {

/// Rates of raw writes with several block sizes and depths: what "best depth" means here.
Status RunRaw(const Options& options);
/// Durable saves into new and into recycled files. Variant: the shapes.
Status RunSave(const Options& options);
/// The first save of a process, whose arena is cold. Variant: the shapes.
Status RunFirstSave(const Options& options);
/// How long a save that is not blocking holds its caller.
Status RunBlocked(const Options& options);
/// Cold restores into memory that is there. Variant: the shapes.
Status RunRestore(const Options& options);
/// 10,000 tensors of 4 KiB, saved and restored.
Status RunSmall(const Options& options);
/// Peak memory above the state. Variant: "background", "blocking" or "low_memory".
Status RunMemory(const Options& options);
/// A repository with very many names: made by the variant "make", opened by the variant "open".
Status RunNames(const Options& options);
/// A save of a state of which most is as it was.
Status RunUnchanged(const Options& options);
/// A computation on all cores while a save is written.
Status RunMatmul(const Options& options);

/// Saves and restores what it is told to on standard input, for bench/peers/run.py, which has it
/// beside the same engine in Python. Variant: the number of tensors.
Status RunContender(const Options& options);

/// Updates of a sparse table of about `bytes`: against a plain map and on two threads. Variant
/// "tracking": alone, to be compared with the same program compiled without tracking.
Status RunTableUpdates(const Options& options);
/// Resident memory of a row above what it holds.
Status RunTableMemory(const Options& options);
/// How long a cut holds updates up, against copying the changed rows.
Status RunTableStall(const Options& options);
/// Batch times around cuts and far from them.
Status RunTableLatency(const Options& options);
/// Size and rate of durable increments, and an updater beside them.
Status RunTableIncrement(const Options& options);
/// Restore of a full checkpoint and ten increments, against reading the same bytes into a plain
/// map.
Status RunTableRestore(const Options& options);
/// Rows of a table of about options.bytes.
std::int64_t TableRows(const Options& options);
/// Loading variables by role against the engine's restore. Variant: "cold" or "warm".
Status RunLoadVars(const Options& options);
/// Cutting a graph of 20,000 nodes.
Status RunPrune(const Options& options);
/// Runs of an inference model against OpenVINO called directly. Variant: rows of a batch.
Status RunPredict(const Options& options);
/// Lookups of a served model that follows a job, against one that takes no updates beside the job.
Status RunServingLookup(const Options& options);
/// Predictions likewise.
Status RunServingPredictAsked(const Options& options);
/// Updates of a served table against inserts into a table.
Status RunServingApply(const Options& options);
/// Peak resident memory of an update of a served model that is asked meanwhile.
Status RunServingMemory(const Options& options);
/// From the acknowledgement of an increment to its being served.
Status RunServingFreshness(const Options& options);
/// Predictions of a served model against OpenVINO with the embeddings at hand.
Status RunServingPredict(const Options& options);

/// From asking for a process until its first line: as a trial, through the launcher, by fork and
/// exec.
Status RunLaunch(const Options& options);
/// What asking whether to stop costs a training loop.
Status RunPreempt(const Options& options);

/// Durable reports through the trial protocol on 16 connections, against appending the same bytes
/// with the same syncs. Variant "quick": fewer.
Status RunReports(const Options& options);
/// From the request to pause until the process is told.
Status RunPauseTold(const Options& options);

/// A fresh directory below the benchmark's own.
Result<std::string> FreshDirectory(const Options& options, const std::string& name);
void RemoveDirectory(const std::string& path);

/// As much memory as a save or load of the state may need.
std::uint64_t MemoryToTouch(const Options& options);

/// Saves the state durably as `step` (the caller's memory is free again when it returns).
Status SaveDurably(CheckpointManager* manager, const State& state, std::int64_t step);

}  // namespace cairn::bench
