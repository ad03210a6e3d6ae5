// Entries that are not in the table: algorithms of the package with something wrong in their packs or sums, and the
// models.
#pragma once

#include "fabric/algorithms.h"
#include "fabric/models.h"

namespace pcie_allreduce::fabric {

const Entry* one_word_one_shot();       // a pack counts as arrived when its first word has
const Entry* raw_one_shot();            // EMPTY is not rewritten
const Entry* negative_zero_two_shot();  // sums may be -0.0, which does no harm
const Entry* raw_sums_two_shot();       // ... where EMPTY is not rewritten, it does

Entry reduce_scatter_model(bool always_one);
Entry all_gather_model(bool always_one);

}  // namespace pcie_allreduce::fabric
