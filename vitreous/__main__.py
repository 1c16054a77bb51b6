from vitreous.cli import main

main()
