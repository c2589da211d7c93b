// Student's t distribution.
#ifndef THERMOCLINE_WORKER_FAE_STUDENT_T_H_
#define THERMOCLINE_WORKER_FAE_STUDENT_T_H_

namespace thermocline {

// Returns the t for which a variable with `degrees` degrees of freedom is in [-t, t] with
// probability `confidence`. REQUIRES: degrees >= 1, 0 < confidence < 1
double StudentT(double confidence, double degrees);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_STUDENT_T_H_
