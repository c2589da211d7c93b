#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "deploy/plan/job_plan.h"
#include "deploy/report/format.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

std::string RenderParts(const std::string& title, const std::vector<PlanPart>& parts) {
  if (parts.empty()) return "";
  std::vector<std::vector<std::string>> rows = {{title, FormatBytes(SumOf(parts))}};
  for (const PlanPart& part : parts) rows.push_back({"  " + part.name, FormatBytes(part.bytes)});
  return absl::StrCat("\n", FormatTable(rows));
}

std::string RenderTables(const Job& job, const JobPlan& plan) {
  if (plan.tables.empty()) return "";
  std::vector<std::vector<std::string>> rows = {
      {"table", "dim", "rows", "memory", "in a checkpoint", "rows known from"}, {}};
  if (job.has_cache()) rows[0].push_back("in the cache");
  for (const PlannedTable& table : plan.tables) {
    const bool is_known = table.rows.has_value();
    rows.push_back({table.name, absl::StrCat(table.dim), is_known ? FormatCount(*table.rows) : "?",
                    is_known ? FormatBytes(table.memory_bytes) : "?",
                    is_known ? FormatBytes(table.checkpoint_bytes) : "?", table.rows_from});
    if (!job.has_cache()) continue;
    const std::string held =
        table.placement != "device"
            ? table.placement
            : absl::StrCat("all, ", is_known ? FormatBytes(table.device_bytes) : "?");
    rows.back().push_back(held);
  }
  return FormatTable(rows);
}

// "memory  3.1 GiB of 23.4 GiB: fits"
std::string FitLine(const char* what, const JobPlan& plan, uint64_t needed, uint64_t there) {
  const char* const least = plan.is_complete ? "" : "at least ";
  const std::string needs = absl::StrCat(what, least, FormatBytes(needed));
  if (there == 0) return needs + "\n";
  const char* const answer = needed > there            ? "DOES NOT FIT"
                             : !plan.is_complete       ? "not all is known"
                             : needed > there * 8 / 10 ? "fits barely"
                                                       : "fits";
  return absl::StrCat(needs, " of ", FormatBytes(there), ": ", answer, "\n");
}

// On the GPU that most workers share: they take the machine's GPUs in turn.
uint64_t GpuBytes(const Job& job, const JobPlan& plan, const Machine& machine) {
  const uint64_t gpus = std::max<uint64_t>(1, machine.gpus.size());
  return plan.device_bytes * ((job.cluster().workers() + gpus - 1) / gpus);
}

std::string RenderDevice(const Job& job, const JobPlan& plan, const Machine& machine) {
  if (plan.device_bytes == 0) return "";
  if (machine.gpus.empty()) {
    return absl::StrCat("GPU:    ", FormatBytes(plan.device_bytes),
                        " for each worker: this machine has none\n");
  }
  const std::string line =
      FitLine("GPU:    ", plan, GpuBytes(job, plan, machine), machine.gpu_memory_bytes);
  return machine.gpu_memory_bytes > 0
             ? line
             : absl::StrCat(absl::StripSuffix(line, "\n"),
                            ": how much the GPU has is not known (nvidia-smi does not say)\n");
}

// The rows that never leave the workers, beside the share of the caches that has to hold them.
std::string RenderKept(const Job& job, const JobPlan& plan) {
  std::string text;
  for (const PlannedSlab& kept : plan.kept) {
    const size_t others = kept.tables.size() - 1;
    const std::string what = absl::StrCat(
        "rows of table '", kept.tables[0], "'",
        others == 0 ? "" : absl::StrCat(" and ", others, " more"), " (placement DEVICE), in ",
        others == 0 ? "its" : "their", " share of cache.budget",
        job.cluster().workers() == 1 ? ": " : " of all workers: ");
    absl::StrAppend(&text, FitLine(what.c_str(), plan, kept.bytes, kept.room_bytes));
  }
  return text;
}

// Where the workers exchange blocks.
std::string RenderLinks(const Job& job, const JobPlan& plan) {
  if (plan.nothing_held.worker == 0) return "";
  std::vector<std::vector<std::string>> rows = {
      {"a step, in a link's busier direction", "of a worker", "of a server"}};
  const auto add = [&](const char* what, const LinkBytes& bytes) {
    rows.push_back({what, FormatBytes(bytes.worker), FormatBytes(bytes.server)});
  };
  if (!job.has_cache()) {
    add("  rows through servers, dense parameters between workers", plan.nothing_held);
  } else {
    add("  if the caches hold none of its rows", plan.nothing_held);
    add("  if they hold all of them", plan.all_held);
  }
  return FormatTable(rows);
}

std::string RenderTraffic(const Job& job, const JobPlan& plan) {
  std::string text =
      absl::StrCat("network: ", FormatBytes(plan.pulled_bytes_per_step), " pulled and ",
                   FormatBytes(plan.pushed_bytes_per_step), " pushed in a step of ",
                   FormatCount(job.train().batch_size()), " samples");
  if (plan.steps_per_s > 0) {
    const auto per_s = [&](uint64_t bytes) {
      return FormatBytes(static_cast<uint64_t>(static_cast<double>(bytes) * plan.steps_per_s));
    };
    absl::StrAppend(&text, absl::StrFormat("; at %.1f steps/s ", plan.steps_per_s),
                    per_s(plan.pulled_bytes_per_step), "/s and ", per_s(plan.pushed_bytes_per_step),
                    "/s");
  }
  return absl::StrCat(text, job.has_cache() ? " (without the cache's hits)" : "", "\n",
                      RenderLinks(job, plan));
}

// What the model has for parameters, or which script it is.
std::string RenderModel(const Job& job, const JobPlan& plan) {
  if (!job.has_worker()) {
    return absl::StrCat("dense parameters: ", FormatCount(plan.dense_parameters), "\n");
  }
  const std::string threads = !job.worker().has_threads() ? "all cores"
                              : job.worker().threads() == 1
                                  ? "1 thread"
                                  : absl::StrCat(job.worker().threads(), " threads");
  return absl::StrCat("script: ", absl::StrJoin(job.worker().command(), " "), ", ",
                      FormatBytes(SumOf(plan.script)), " of memory (worker.memory), ", threads,
                      " (worker.threads); what it keeps in checkpoints is not known before\n");
}

Json PartsToJson(const std::vector<PlanPart>& parts) {
  Json json = Json::object();
  for (const PlanPart& part : parts) json[part.name] = part.bytes;
  return json;
}

}  // namespace

bool Fits(const Job& job, const JobPlan& plan, const Machine& machine) {
  const auto fits = [](uint64_t needed, uint64_t there) { return there == 0 || needed <= there; };
  return fits(plan.memory_bytes, machine.memory_bytes) &&
         fits(plan.disk_bytes, machine.free_disk_bytes) &&
         std::all_of(plan.kept.begin(), plan.kept.end(),
                     [](const PlannedSlab& kept) { return kept.bytes <= kept.room_bytes; }) &&
         (plan.device_bytes == 0 ||
          (!machine.gpus.empty() && fits(GpuBytes(job, plan, machine), machine.gpu_memory_bytes)));
}

std::string RenderPlan(const Job& job, const JobPlan& plan, const Machine& machine) {
  const auto processes = [](uint64_t count, const char* noun) {
    return absl::StrCat("each of ", count, " ", noun, "s");
  };
  const uint64_t servers = job.cluster().servers(), workers = job.cluster().workers();
  std::string text = RenderTables(job, plan);
  absl::StrAppend(
      &text,
      RenderParts(servers == 0   ? std::string("the worker's embedded server")
                  : servers == 1 ? std::string("server")
                                 : processes(servers, "server"),
                  plan.server),
      RenderParts(workers == 1 ? std::string("worker") : processes(workers, "worker"), plan.worker),
      RenderParts("the worker's script", plan.script),
      RenderParts("GPU memory of each worker", plan.device),
      RenderParts("thermocline-pack, before the servers start", plan.pack),
      RenderParts("disk", plan.disk), "\n", RenderTraffic(job, plan), RenderModel(job, plan),
      "\nthis machine\n", FitLine("memory: ", plan, plan.memory_bytes, machine.memory_bytes),
      FitLine("disk:   ", plan, plan.disk_bytes, machine.free_disk_bytes),
      RenderDevice(job, plan, machine), RenderKept(job, plan),
      "memory that is free now: ", FormatBytes(machine.available_memory_bytes), "; ", machine.cores,
      machine.cores == 1 ? " core" : " cores",
      "; GPU: ", machine.gpus.empty() ? "none" : absl::StrJoin(machine.gpus, ", "), "\n");
  if (const std::string risks = DescribeRisks(job); !risks.empty()) {
    absl::StrAppend(&text, risks, "\n");
  }
  for (const std::string& warning : plan.warnings)
    absl::StrAppend(&text, "warning: ", warning, "\n");
  if (!plan.is_complete) {
    absl::StrAppend(&text,
                    "The rows of some tables are not known: --scan reads the data, or "
                    "--figures FILE takes what `inspect --json` has found.\n");
  }
  return text;
}

Json PlanToJson(const JobPlan& plan, const Machine& machine) {
  Json json;
  json["complete"] = plan.is_complete;
  Json& tables = json["tables"] = Json::array();
  for (const PlannedTable& table : plan.tables) {
    Json entry = {{"name", table.name}, {"dim", table.dim}};
    entry["rows"] = table.rows.has_value() ? Json(*table.rows) : Json();
    entry["rows_from"] = table.rows_from;
    entry["memory_bytes"] = table.memory_bytes;
    entry["checkpoint_bytes"] = table.checkpoint_bytes;
    if (!table.placement.empty()) entry["placement"] = table.placement;
    if (table.device_bytes > 0) entry["device_bytes"] = table.device_bytes;
    if (table.spilled_bytes > 0) entry["rocksdb_bytes"] = table.spilled_bytes;
    tables.push_back(std::move(entry));
  }
  json["dense_parameters"] = plan.dense_parameters;
  json["server"] = PartsToJson(plan.server);
  json["worker"] = PartsToJson(plan.worker);
  if (!plan.script.empty()) json["script"] = PartsToJson(plan.script);
  json["device"] = PartsToJson(plan.device);
  if (!plan.pack.empty()) json["pack"] = PartsToJson(plan.pack);
  json["disk"] = PartsToJson(plan.disk);
  json["pulled_bytes_per_step"] = plan.pulled_bytes_per_step;
  json["pushed_bytes_per_step"] = plan.pushed_bytes_per_step;
  if (plan.nothing_held.worker > 0) {
    const auto links = [](const LinkBytes& bytes) {
      return Json{{"worker", bytes.worker}, {"server", bytes.server}};
    };
    json["link_bytes_per_step"] = {{"nothing_held", links(plan.nothing_held)},
                                   {"all_held", links(plan.all_held)}};
  }
  if (plan.steps_per_s > 0) json["steps_per_s"] = plan.steps_per_s;
  json["memory_bytes"] = plan.memory_bytes;
  json["disk_bytes"] = plan.disk_bytes;
  json["device_bytes"] = plan.device_bytes;
  for (const PlannedSlab& kept : plan.kept) {
    json["kept"].push_back(
        {{"tables", kept.tables}, {"bytes", kept.bytes}, {"room_bytes", kept.room_bytes}});
  }
  for (const std::string& warning : plan.warnings) json["warnings"].push_back(warning);
  json["machine"] = {{"memory_bytes", machine.memory_bytes},
                     {"available_memory_bytes", machine.available_memory_bytes},
                     {"free_disk_bytes", machine.free_disk_bytes},
                     {"cores", machine.cores},
                     {"gpus", machine.gpus},
                     {"gpu_memory_bytes", machine.gpu_memory_bytes}};
  return json;
}

}  // namespace thermocline
