// The cache stage of one worker whose cache holds the same rows from the first step to the last
// (Cache::STATIC): their keys are hits, all others are bypassed in every step.
#ifndef THERMOCLINE_WORKER_SOURCE_STATIC_STAGE_H_
#define THERMOCLINE_WORKER_SOURCE_STATIC_STAGE_H_

#include <memory>

#include "common/base/thread_pool.h"
#include "worker/source/cache_stage.h"
#include "worker/source/cached_source_options.h"

namespace thermocline {

// REQUIRES: options.static_rows is set. `threads` outlive it.
std::unique_ptr<CacheStage> MakeStaticStage(const CachedSourceOptions& options,
                                            ThreadPool* threads);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SOURCE_STATIC_STAGE_H_
