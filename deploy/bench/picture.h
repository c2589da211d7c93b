// Pictures of measurements, drawn by deploy/python/bench_picture.py where there is matplotlib.
#ifndef THERMOCLINE_DEPLOY_BENCH_PICTURE_H_
#define THERMOCLINE_DEPLOY_BENCH_PICTURE_H_

#include <string>

namespace thermocline {

// Draws FOLDER/KIND.png of the CSV files there; kind: "arms", "sweep". Returns a line for the
// console: where the picture is, or why there is none.
std::string DrawPicture(const std::string& kind, const std::string& folder);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_BENCH_PICTURE_H_
