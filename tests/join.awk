# Joins C++ files into one compile unit (tests/rules.bzl): what a file includes takes longer to compile than the file.
#
# Compilers and GoogleTest go on naming the files and lines people edit. With -v separate=1 what a file has in its
# unnamed namespace stays its own: the namespace gets one with a name of its own around it. That is for tests; other
# files use such names outside of the namespace, too.
FNR == 1 {
  name = FILENAME
  gsub(/[^A-Za-z0-9]/, "_", name)
  printf "#line 1 \"%s\"\n", FILENAME
}
separate && /^namespace \{$/ { $0 = "namespace " name " { namespace {" }
separate && /^\}  \/\/ namespace$/ { $0 = "} }  // namespace" }
{ print }
