"""Write an InternVL2 checkpoint folder of random weights, for tests and speed measurements.

    python scripts/write_checkpoint.py FOLDER --shape tiny
    python scripts/write_checkpoint.py FOLDER --shape 8b --device cuda
"""
import argparse
import sys

from lmdeploy_ext.models.checkpoint import DTYPES, write_checkpoint
from lmdeploy_ext.models.shapes import SHAPES


def main() -> int:
    """Write the checkpoint; 1 and one line on stderr where that is not possible."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', help='made if it is not there')
    parser.add_argument('--shape', default='tiny', choices=SHAPES, help='default: tiny')
    parser.add_argument('--dtype', default='float16', choices=DTYPES, help='default: float16')
    parser.add_argument('--seed', type=int, default=0, help='of the weights; default: 0')
    parser.add_argument('--device',
                        default='cpu',
                        help='where the weights are drawn, such as cuda; default: cpu')
    parser.add_argument('--overwrite', action='store_true', help='replace weights in the folder')
    args = parser.parse_args()
    try:
        write_checkpoint(args.folder,
                         args.shape,
                         dtype=args.dtype,
                         seed=args.seed,
                         device=args.device,
                         overwrite=args.overwrite)
    except (ValueError, OSError) as error:
        print(f'write_checkpoint: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
