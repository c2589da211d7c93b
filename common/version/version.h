/* The version of this build: the same in its programs, its library for scripts and its packages.
 * Plain C. */
#ifndef THERMOCLINE_COMMON_VERSION_VERSION_H_
#define THERMOCLINE_COMMON_VERSION_VERSION_H_

#define THERMOCLINE_VERSION "0.1.0"

#endif /* THERMOCLINE_COMMON_VERSION_VERSION_H_ */
