// The three modes.
#pragma once

#include "options.h"

namespace rocks {

void run(const Config& config);      // replays the request file and measures
void fill(const Config& config);     // inserts everything, makes it durable, and kills itself
void recover(const Config& config);  // opens and answers one request

}  // namespace rocks
