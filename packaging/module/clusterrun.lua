-- Lmod: copy to MODULEPATH/clusterrun/0.1.0.lua, and set the prefix: the virtual environment that clusterrun is in.
help([[clusterrun: PyTorch training on many nodes with one command. clusterrun --help, clusterrun help]])
whatis("Name: clusterrun")
whatis("Version: 0.1.0")
local prefix = "/opt/clusterrun/0.1.0"
prepend_path("PATH", pathJoin(prefix, "bin"))
-- Defaults of the site are variables named as the options are:
-- setenv("CLUSTERRUN_PARTITION", "gpu")
-- setenv("CLUSTERRUN_SLURM_EVERY", "10")
