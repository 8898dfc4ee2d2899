// Faults that the stand-ins show on demand.
//
// CUDA_STANDIN_FAULTS is a list "KIND[@PLACE][=VALUE];…". PLACE is a host name, "rank3" (of RANK) or "gpu1" (the
// number on its node), or several of these joined by "+"; the fault strikes if all of them match. No PLACE matches
// everywhere. The README lists the kinds.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <string>

inline bool fault_place_matches(const std::string& place, int gpu) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  const char* rank = getenv("RANK");
  std::istringstream terms(place);
  for (std::string term; std::getline(terms, term, '+');) {
    bool matches = term == host || term == "gpu" + std::to_string(gpu) || (rank && term == std::string("rank") + rank);
    if (!matches) return false;
  }
  return true;
}

// Return whether a fault of this kind strikes the GPU; its VALUE (1 if there is none) goes to *value.
inline bool has_fault(const std::string& kind, int gpu, double* value = nullptr) {
  const char* list = getenv("CUDA_STANDIN_FAULTS");
  if (!list) return false;
  std::istringstream faults(list);
  for (std::string fault; std::getline(faults, fault, ';');) {
    size_t equals = fault.find('='), at = fault.find('@');
    std::string place = at == std::string::npos ? "" : fault.substr(at + 1, equals == std::string::npos ? equals : equals - at - 1);
    std::string name = fault.substr(0, std::min(at, equals));
    if (name != kind || !fault_place_matches(place, gpu)) continue;
    if (value) *value = equals == std::string::npos ? 1 : atof(fault.c_str() + equals + 1);
    return true;
  }
  return false;
}
