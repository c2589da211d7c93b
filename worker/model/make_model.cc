#include "common/base/check.h"
#include "worker/model/dlrm.h"
#include "worker/model/model.h"

namespace thermocline {
namespace {

// The models that can be computed, by the names of common/model/model_spec.cc.
struct Maker {
  const char* preset;
  std::unique_ptr<Model> (*make)(const ModelSpec& spec, const ModelParts& parts);
};
constexpr Maker kMakers[] = {
    {"dlrm", MakeDlrm},
};

}  // namespace

std::unique_ptr<Model> MakeModel(const ModelSpec& spec, const ModelParts& parts) {
  for (const Maker& maker : kMakers) {
    if (spec.preset == maker.preset) return maker.make(spec, parts);
  }
  CHECK(false);
  return nullptr;
}

}  // namespace thermocline
