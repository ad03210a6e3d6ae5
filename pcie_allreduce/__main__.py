import sys

from pcie_allreduce.cli.main import main

sys.exit(main())
