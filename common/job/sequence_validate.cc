#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/text.h"
#include "common/job/job_data.h"
#include "common/job/job_source.h"

namespace thermocline {
namespace {

class SequenceValidator {
 public:
  SequenceValidator(const Job& job, const JobSource& source) : job_(job), source_(source) {}

  absl::Status Run() const {
    for (int s = 0; s < job_.sequence_size(); ++s) {
      if (job_.has_worker()) {
        return source_.Error("sequence",
                             "is set, and `worker` as well: a script gets its lists as they are");
      }
      RETURN_IF_ERROR(CheckLists(s));
      RETURN_IF_ERROR(CheckThen(s));
      RETURN_IF_ERROR(CheckKeys(s));
    }
    return absl::OkStatus();
  }

 private:
  static std::string Field(int sequence, const char* field, int i) {
    return absl::StrCat("sequence[", sequence, "].", field, "[", i, "]");
  }

  // Names a feature in an error at `path`: "names 'item', " and what is wrong.
  template <typename... Parts>
  absl::Status Refuse(const std::string& path, const std::string& name,
                      const Parts&... what) const {
    return source_.Error(path, "names '", name, "', ", what...);
  }

  absl::StatusOr<const Feature*> Find(const std::string& path, const std::string& name) const {
    std::vector<std::string> names;
    for (const Feature& feature : job_.feature()) {
      if (feature.name() == name) {
        if (IsNumeric(feature)) return Refuse(path, name, "which is numeric");
        return &feature;
      }
      names.push_back(feature.name());
    }
    return Refuse(path, name, "but there is no such feature", DidYouMean(name, names));
  }

  absl::Status CheckLists(int s) const {
    const Sequence& sequence = job_.sequence(s);
    if (sequence.of().empty()) {
      return source_.Error(absl::StrCat("sequence[", s, "].of"),
                           "is empty; it names features with `sequence`");
    }
    const Feature* first = nullptr;
    std::set<std::string> names;
    for (int i = 0; i < sequence.of_size(); ++i) {
      const std::string path = Field(s, "of", i);
      const std::string& name = sequence.of(i);
      ASSIGN_OR_RETURN(const Feature* const list, Find(path, name));
      if (!names.insert(name).second) return Refuse(path, name, "a second time");
      if (!list->has_sequence()) {
        return Refuse(path, name, "which has no `sequence { max_length: ... }`");
      }
      if (!list->categorical().weights().empty()) {
        return Refuse(path, name, "which has weights (categorical.weights); steps have none");
      }
      if (first == nullptr) first = list;
      const auto refuse = [&](const char* field, const auto& mine, const auto& other) {
        return Refuse(path, name, "whose sequence.", field, " is ", mine, ", but that of '",
                      first->name(), "' is ", other, "; they are read together");
      };
      if (list->sequence().max_length() != first->sequence().max_length()) {
        return refuse("max_length", list->sequence().max_length(), first->sequence().max_length());
      }
      if (list->sequence().keep() != first->sequence().keep()) {
        return refuse("keep", Feature::Sequence::Keep_Name(list->sequence().keep()),
                      Feature::Sequence::Keep_Name(first->sequence().keep()));
      }
    }
    return absl::OkStatus();
  }

  // How a value becomes a key.
  static std::string KeysOf(const Feature& feature) {
    Feature::Categorical keys = feature.categorical();
    keys.clear_missing();
    keys.clear_min();  // ValidateTraining compares them.
    keys.clear_separator();
    keys.clear_weights();
    keys.clear_min_count();
    const std::string text = keys.ShortDebugString();
    return text.empty() ? "nothing of its own" : text;
  }

  // Values of a list that are no keys of the features in its table would find rows of their own.
  absl::Status CheckKeys(int s) const {
    for (int i = 0; i < job_.sequence(s).of_size(); ++i) {
      const std::string path = Field(s, "of", i);
      ASSIGN_OR_RETURN(const Feature* const list, Find(path, job_.sequence(s).of(i)));
      for (const Feature& other : job_.feature()) {
        if (IsNumeric(other) || other.has_cross() || other.table() != list->table()) continue;
        if (KeysOf(other) == KeysOf(*list)) continue;
        return Refuse(path, list->name(), "whose keys are made by categorical { ", KeysOf(*list),
                      " }, but those of '", other.name(), "' in the same table by { ",
                      KeysOf(other), " }: the same value would have two rows");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckThen(int s) const {
    const Sequence& sequence = job_.sequence(s);
    if (sequence.then().empty()) return absl::OkStatus();
    if (sequence.then_size() != sequence.of_size()) {
      return source_.Error(absl::StrCat("sequence[", s, "].then"), "names ", sequence.then_size(),
                           sequence.then_size() == 1 ? " feature" : " features",
                           ", and `of` names ", sequence.of_size(),
                           "; it names one for each, or none");
    }
    for (int i = 0; i < sequence.then_size(); ++i) {
      const std::string path = Field(s, "then", i);
      const std::string& name = sequence.then(i);
      ASSIGN_OR_RETURN(const Feature* const last, Find(path, name));
      ASSIGN_OR_RETURN(const Feature* const list, Find(Field(s, "of", i), sequence.of(i)));
      if (const char* const wrong = WrongAsStep(*last); wrong != nullptr) {
        return Refuse(path, name, wrong);
      }
      if (last->table() == list->table()) continue;
      return Refuse(path, name, "which reads the table '", last->table(), "', but '", list->name(),
                    "' reads '", list->table(), "'; write table: \"", last->table(),
                    "\" in one of them");
    }
    return absl::OkStatus();
  }

  // Why a feature does not have one key in every sample; null: it does.
  static const char* WrongAsStep(const Feature& feature) {
    const Feature::Categorical& categorical = feature.categorical();
    if (feature.has_sequence()) return "which is a sequence; it must have one value";
    if (IsBag(feature)) return "which is a list; it must have one value";
    if (!categorical.weights().empty()) return "which has weights; steps have none";
    if (feature.has_padding_id()) return "which may have no key (padding_id)";
    if (categorical.missing() == Feature::Categorical::NO_KEY) {
      return "which may have no key (missing: NO_KEY)";
    }
    return nullptr;
  }

  const Job& job_;
  const JobSource& source_;
};

}  // namespace

absl::Status ValidateSequences(const Job& resolved, const JobSource& source) {
  return SequenceValidator(resolved, source).Run();
}

}  // namespace thermocline
