from vitreous.cli.main import main

main()
