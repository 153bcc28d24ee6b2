// Which of the given layers this host cannot give, found by trying. Costs a few processes, so it is asked only by
// `doctor` and when --allow-degraded may make use of the answer.
#pragma once

#include "policy/layer.h"
#include "sys/host.h"

namespace pctx {

struct ProbedLayer {
  bool works = false;
  int code = 0;  // errno of the refusal
};

ProbedLayer probe_layer(Layer layer, const HostFeatures& host);

// Whether a user namespace of this user's may have the user in it. Root needs CAP_SETFCAP for that since Linux 5.12.
bool maps_own_id(const HostFeatures& host);
LayerSet probe_missing(const LayerSet& asked, const HostFeatures& host);

// Whether a listener above us (a container runtime's) keeps every filter of ours from having one. Asked for every run:
// one system call where we run under no filter, one process where we do.
bool listener_is_taken();

}  // namespace pctx
