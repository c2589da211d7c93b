#include "common/model/dlrm_spec.h"

#include <utility>
#include <vector>

namespace thermocline {
namespace {

MlpShape Mlp(const char* name, int input, const google::protobuf::RepeatedField<uint32_t>& hidden,
             int output) {
  MlpShape mlp;
  mlp.name = name;
  mlp.widths.push_back(input);
  for (const uint32_t width : hidden) mlp.widths.push_back(static_cast<int>(width));
  mlp.widths.push_back(output);
  return mlp;
}

}  // namespace

std::optional<ModelError> CheckDlrm(const Job& job, const ModelInputs& inputs) {
  if (inputs.numeric == 0 && job.dlrm().bottom_size() > 0) {
    return ModelError{"dlrm.bottom[0]", "is set, but data.num_dense is 0: it has no input"};
  }
  std::optional<ModelError> error = CheckWidths("dlrm.bottom", job.dlrm().bottom());
  return error.has_value() ? error : CheckWidths("dlrm.top", job.dlrm().top());
}

ModelSpec DescribeDlrm(const Job& job, const ModelInputs& inputs) {
  const Dlrm& dlrm = job.dlrm();
  const int dim = inputs.vector_dims.empty() ? inputs.default_dim : inputs.vector_dims[0];
  const int vectors = inputs.num_vectors() + (inputs.numeric > 0 ? 1 : 0);
  MlpShape bottom;
  bottom.name = "bottom";
  if (inputs.numeric > 0) bottom = Mlp("bottom", inputs.numeric, dlrm.bottom(), dim);
  const MlpShape top = Mlp("top", dim + vectors * (vectors - 1) / 2, dlrm.top(), 1);

  ModelSpec spec;
  AddTensors(bottom, &spec.tensors);
  AddTensors(top, &spec.tensors);
  // The interaction's input and output, the logits, and the gradient of each.
  ActivationFloats between;
  between.per_sample = 2 * (int64_t{vectors} * dim + PaddedFloats(top.widths[0]) + 1);
  const auto activations = [&](ComputeOn where) {
    return between + HiddenFloats(bottom, where) + HiddenFloats(top, where);
  };
  spec.on_cpu = activations(ComputeOn::kCpu);
  spec.on_gpu = activations(ComputeOn::kGpu);
  spec.mlps = {std::move(bottom), top};
  spec.initializer = dlrm.initializer();
  spec.precision = dlrm.precision();
  spec.size_fields = "dlrm.bottom, dlrm.top";
  spec.precision_field = "dlrm.precision";
  spec.one_dim_for = "DLRM's dot products";
  return spec;
}

}  // namespace thermocline
