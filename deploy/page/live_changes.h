// What a live page has not seen yet of a run's document.
//
// A cursor is a text that says what a page has: how often points were dropped; of each series how
// many lines a point has and how many points have all of them; a checksum of each other field.
#ifndef THERMOCLINE_DEPLOY_PAGE_LIVE_CHANGES_H_
#define THERMOCLINE_DEPLOY_PAGE_LIVE_CHANGES_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace thermocline {

// The cursor of a page that has all of `run`, a document that MakeRunDocument made. `drops`: how
// often points of its series were dropped.
std::string CursorOf(const nlohmann::ordered_json& run, uint64_t drops);

// What a page with `cursor` lacks of `run`: its changed fields, and of a series as
// "progress_tail" and "workers_series_tail" its points from "from" on. nullopt where the page needs
// the whole document: points were dropped or merged, or the cursor is none of this run.
// `now`: CursorOf(run, drops).
std::optional<nlohmann::ordered_json> ChangesSince(absl::string_view cursor, absl::string_view now,
                                                   const nlohmann::ordered_json& run);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PAGE_LIVE_CHANGES_H_
