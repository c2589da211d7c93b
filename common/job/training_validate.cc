#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/job/job_data.h"
#include "common/job/job_source.h"
#include "common/job/resolved_job.h"
#include "common/model/model_graph.h"

namespace thermocline {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

class TrainingValidator {
 public:
  TrainingValidator(const Job& job, const JobSource& source) : job_(job), source_(source) {}

  absl::Status Run() const {
    RETURN_IF_ERROR(CheckRoomForDense());
    RETURN_IF_ERROR(CheckCacheIsFresh());
    if (job_.has_worker() && job_.precision() != FLOAT32) {
      return source_.Error("precision", "is ", Precision_Name(job_.precision()),
                           "; a script (`worker`) computes in its own: see torch.autocast");
    }
    RETURN_IF_ERROR(CheckDropouts());
    for (int s = 0; s < job_.sequence_size(); ++s) {
      RETURN_IF_ERROR(CheckMin(s));
      if (job_.has_din()) RETURN_IF_ERROR(CheckQueryOfDin(job_.sequence(s)));
    }
    for (int i = 0; i < job_.layer_size(); ++i) RETURN_IF_ERROR(CheckQuery(i));
    return absl::OkStatus();
  }

 private:
  // The dense parameters that a step pushes, or that are written back, have to fit into each
  // server.
  absl::Status CheckRoomForDense() const {
    ASSIGN_OR_RETURN(const uint64_t room, ParseByteSize(job_.cluster().max_pending_size()));
    const uint64_t needed = DensePushBytes(job_);
    if (needed <= room) return absl::OkStatus();
    return source_.Error(
        "cluster.max_pending_size", "is ", room, " bytes, but the dense parameters that ",
        job_.cluster().workers() == 1 ? "the worker pushes " : "the workers push ",
        HoldsDenseParameters(job_) ? "at checkpoints and at the end" : "in each step", " take ",
        needed, " bytes of one server; give it more, or the job more servers");
  }

  // Several workers share a cache in sync mode alone; earlier builds had copies of rows in this
  // case.
  absl::Status CheckCacheIsFresh() const {
    const uint32_t staleness = job_.train().staleness_steps();
    if (!job_.has_cache() || staleness == 0 || job_.cluster().workers() == 1) {
      return absl::OkStatus();
    }
    return source_.Error("train.staleness_steps", "is ", staleness,
                         "; with `cache` and several workers it must be 0");
  }

  // Presets, layers and whatever else drops units have a field of this name.
  absl::Status CheckDropouts() const {
    RETURN_IF_ERROR(CheckDropoutsIn(job_, ""));
    for (int i = 0; i < job_.layer_size(); ++i) {
      RETURN_IF_ERROR(CheckDropoutsIn(job_.layer(i), absl::StrCat("layer[", i, "].")));
    }
    return absl::OkStatus();
  }

  // Checks those in the stanzas of `message`, whose fields' paths begin with `prefix`.
  absl::Status CheckDropoutsIn(const Message& message, const std::string& prefix) const {
    std::vector<const FieldDescriptor*> fields;
    message.GetReflection()->ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->is_repeated() || field->message_type() == nullptr) continue;
      const FieldDescriptor* share = field->message_type()->FindFieldByName("dropout");
      if (share == nullptr) continue;
      const Message& stanza = message.GetReflection()->GetMessage(message, field);
      const float dropout = stanza.GetReflection()->GetFloat(stanza, share);
      if (dropout == 0 || dropout * kDropoutUnits >= 1) continue;
      return source_.Error(absl::StrCat(prefix, field->name(), ".dropout"), "is ", dropout,
                           ", which drops nothing; it must be 0, or at least 1/", kDropoutUnits);
    }
    return absl::OkStatus();
  }

  // The embedded feature of this name; null: there is none.
  const Feature* FeatureNamed(const std::string& name) const {
    const auto found = std::find_if(
        job_.feature().begin(), job_.feature().end(),
        [&name](const Feature& feature) { return feature.name() == name && !IsNumeric(feature); });
    return found == job_.feature().end() ? nullptr : &*found;
  }

  static std::string MinOf(const Feature& feature) {
    return feature.categorical().has_min() ? absl::StrCat(feature.categorical().min()) : "unset";
  }

  // The features of one table have the same ids missing.
  absl::Status CheckMin(int s) const {
    for (int i = 0; i < job_.sequence(s).of_size(); ++i) {
      const Feature& list = *FeatureNamed(job_.sequence(s).of(i));
      for (const Feature& other : job_.feature()) {
        if (IsNumeric(other) || other.has_cross() || other.table() != list.table()) continue;
        if (MinOf(list) == MinOf(other)) continue;
        return source_.Error(
            absl::StrCat("sequence[", s, "].of[", i, "]"), "names '", list.name(),
            "', whose categorical.min is ", MinOf(list), ", but that of '", other.name(),
            "' in the same table is ", MinOf(other),
            ": an id that is missing in one of them would have a row in the other");
      }
    }
    return absl::OkStatus();
  }

  // What din compares the steps with has one value, not a bag of them.
  absl::Status CheckQueryOfDin(const Sequence& sequence) const {
    if (!sequence.then().empty()) return absl::OkStatus();
    for (const std::string& list : sequence.of()) {
      const std::string& table = FeatureNamed(list)->table();
      const bool has_one = std::any_of(job_.feature().begin(), job_.feature().end(),
                                       [&table](const Feature& feature) {
                                         return !IsNumeric(feature) && feature.table() == table &&
                                                !feature.has_sequence() && !IsBag(feature);
                                       });
      if (has_one) continue;
      return source_.Error(
          "din", "compares each step of '", sequence.name(),
          "' with the sample's own features, and for '", list,
          "' there is no feature in the same table that is no list; set its "
          "`table` to the name of the feature that has one such value in each row");
    }
    return absl::OkStatus();
  }

  // Steps are compared with features of their own tables, one after the other. What a layer makes
  // of features, or of steps, may be compared with anything.
  absl::Status CheckQuery(int layer) const {
    const auto& query = job_.layer(layer).attention().query();
    const auto sequence =
        std::find_if(job_.sequence().begin(), job_.sequence().end(), [&](const Sequence& sequence) {
          return job_.layer(layer).input_size() == 1 &&
                 job_.layer(layer).input(0) == sequence.name();
        });
    const auto is_feature = [this](const std::string& name) {
      return FeatureNamed(name) != nullptr;
    };
    if (sequence == job_.sequence().end() || !std::all_of(query.begin(), query.end(), is_feature)) {
      return absl::OkStatus();
    }
    for (int i = 0; i < std::min(query.size(), sequence->of_size()); ++i) {
      const std::string& table = FeatureNamed(query[i])->table();
      const std::string& table_of_list = FeatureNamed(sequence->of(i))->table();
      if (table == table_of_list) continue;
      return source_.Error(absl::StrCat("layer[", layer, "].attention.query[", i, "]"), "names '",
                           query[i], "', which reads the table '", table,
                           "', but is compared with '", sequence->of(i), "' of '", sequence->name(),
                           "', which reads '", table_of_list,
                           "'; a query that is meant so goes through a layer, such as `concat`");
    }
    return absl::OkStatus();
  }

  const Job& job_;
  const JobSource& source_;
};

}  // namespace

absl::Status ValidateTraining(const Job& resolved, const JobSource& source) {
  return TrainingValidator(resolved, source).Run();
}

}  // namespace thermocline
