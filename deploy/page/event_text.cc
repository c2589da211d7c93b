// Events of metrics.jsonl in words.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "deploy/page/run_history.h"
#include "deploy/report/format.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

std::string WholeAt(const Json& line, const char* name) {
  const auto value = NumberAt(line, name);
  return value ? absl::StrFormat("%.0f", *value) : "?";
}

std::string DescribeCheckpoint(const Json& line) {
  const bool is_full = line.value("full", Json()) == true;
  return absl::StrFormat(
      "%s, %s%s, written in %.1f s", TextAt(line, "name"),
      FormatBytes(static_cast<uint64_t>(std::max(0.0, NumberAt(line, "bytes").value_or(0)))),
      is_full ? "" : " (changes)", NumberAt(line, "write_s").value_or(0));
}

std::string DescribeSlow(const Json& line) {
  const std::string host = TextAt(line, "host"), role = TextAt(line, "role");
  if (line.value("is_slow", Json()) != true) {
    return absl::StrCat("the ", role, "s of host ", host, " are not slow any more");
  }
  const bool is_work = TextAt(line, "what") == "work";
  return absl::StrFormat(
      "host %s is slow: its %ss take %.3g s %s, those of other hosts %.3g s; a step takes %.3g s",
      host, role, NumberAt(line, "own_s").value_or(0), is_work ? "for a step" : "to answer",
      NumberAt(line, "others_s").value_or(0), NumberAt(line, "step_s").value_or(0));
}

std::string DescribeRanks(const Json& line) {
  std::vector<std::string> ranks;
  for (const Json& rank : line.value("ranks", Json::array())) ranks.push_back(rank.dump());
  if (ranks.empty() && NumberAt(line, "rank")) ranks.push_back(WholeAt(line, "rank"));
  if (ranks.empty()) return "";
  return absl::StrCat(ranks.size() == 1 ? "worker " : "workers ", absl::StrJoin(ranks, ", "), ": ");
}

std::string DescribeEnd(const Json& line) {
  const std::string status = TextAt(line, "status"), reason = TextAt(line, "reason");
  if (status == "OK" && reason.empty()) return "trained to its end";
  return reason.empty() ? status : absl::StrCat(status, ": ", reason);
}

std::string DescribePack(const Json& line) {
  std::string text = absl::StrCat(WholeAt(line, "hot_rows"), " hot rows");
  if (const auto share = NumberAt(line, "lookup_share")) {
    absl::StrAppendFormat(&text, ", %.1f%% of the lookups", 100 * *share);
  }
  return text;
}

// The fields of an event that a later program writes.
std::string DescribeFields(const Json& line) {
  std::vector<std::string> fields;
  for (const auto& [name, value] : line.items()) {
    if (name == "event" || name == "wall_s") continue;
    fields.push_back(absl::StrCat(
        name, " ",
        value.is_string() ? value.get<std::string>()
                          : value.dump(-1, ' ', false, Json::error_handler_t::replace)));
  }
  return absl::StrJoin(fields, ", ");
}

}  // namespace

std::string DescribeEvent(const std::string& kind, const Json& line) {
  const auto reason = [&line] { return TextAt(line, "reason"); };
  if (kind == "eval") {
    return absl::StrCat("after step ", WholeAt(line, "step"), ": ", RenderScores(line, ""));
  }
  if (kind == "checkpoint") return DescribeCheckpoint(line);
  if (kind == "checkpoint_called_off") {
    return absl::StrCat("step ", WholeAt(line, "step"), ": ", reason());
  }
  if (kind == "server_restart") {
    return absl::StrCat(TextAt(line, "process"), " ", reason(), "; started again");
  }
  if (kind == "rollback") {
    return absl::StrCat(reason(), "; back to step ", WholeAt(line, "step"), " (generation ",
                        WholeAt(line, "generation"), ")");
  }
  if (kind == "resume") {
    return absl::StrCat("goes on at step ", WholeAt(line, "step"), " (generation ",
                        WholeAt(line, "generation"), ")");
  }
  if (kind == "slow_host") return DescribeSlow(line);
  if (kind == "phase") {
    return absl::StrFormat("%s, %.1f s", TextAt(line, "phase"),
                           NumberAt(line, "seconds").value_or(0));
  }
  if (kind == "limit") {
    return absl::StrCat(TextAt(line, "field"), " is ", WholeAt(line, "limit"), ": ", reason());
  }
  if (kind == "warning") return DescribeRanks(line) + TextAt(line, "text");
  if (kind == "end") return DescribeEnd(line);
  if (kind == "change") {
    return absl::StrCat(line.value("hot", Json()) == true ? "hot" : "cold", " batches after step ",
                        WholeAt(line, "step"));
  }
  if (kind == "pack") return DescribePack(line);
  return DescribeFields(line);
}

}  // namespace thermocline
