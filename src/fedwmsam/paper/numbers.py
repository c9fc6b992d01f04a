"""The numbers of the FedWMSAM paper as printed, by LaTeX label, row and column.

Rows have one name everywhere ("FedGamma" and "FedWMSAM (ours)" of some tables are FedGAMMA and
FedWMSAM). "-" is the paper's sign for an accuracy never reached. The numbers of its Figure 6 are
not in the paper: those over the number of clients are the labels on its authors' poster, those over
the sampling rate were read off the plot (± 0.003).
"""

from collections.abc import Sequence

PaperNumbers = dict[tuple[str, str], str]
"""Numbers as printed, by row and column."""


def parse_numbers(columns: Sequence[str], text: str) -> PaperNumbers:
    """Parse lines that consist of a row's name and a number for each column."""
    numbers: PaperNumbers = {}
    for line in text.strip().splitlines():
        row, *cells = line.split()
        for column, number in zip(columns, cells, strict=True):
            numbers[row, column] = number
    return numbers


def partition_columns(dataset: str, *gammas: int) -> list[str]:
    """Return the names of a data set's columns in Table 1, with these pathological partitions."""
    coefficients = ["β = 0.6", "β = 0.1", *(f"γ = {gamma}" for gamma in gammas)]
    return [f"{dataset} {coefficient}" for coefficient in coefficients]


PAPER_NUMBERS: dict[str, PaperNumbers] = {
    "tab:performance_comparison": {
        **parse_numbers(
            partition_columns("Fashion-MNIST", 6, 3),
            """
            FedAvg   0.8684 0.8226 0.8625 0.8150
            FedCM    0.8283 0.7333 0.8047 0.6630
            SCAFFOLD 0.8789 0.8351 0.8785 0.8311
            FedSAM   0.8683 0.8261 0.8673 0.8045
            MoFedSAM 0.8278 0.7489 0.8141 0.6822
            FedGAMMA 0.8708 0.8298 0.8716 0.8303
            FedSMOO  0.8846 0.8337 0.8745 0.8296
            FedLESAM(-S/-D) 0.8689 0.8375 0.8732 0.8209
            FedWMSAM 0.8756 0.8464 0.8805 0.8531
            """,
        ),
        **parse_numbers(
            partition_columns("CIFAR-10", 6, 3),
            """
            FedAvg   0.7886 0.7005 0.7873 0.6426
            FedCM    0.8126 0.7229 0.8167 0.7025
            SCAFFOLD 0.8232 0.7428 0.8179 0.6786
            FedSAM   0.7963 0.6963 0.7908 0.6503
            MoFedSAM 0.8339 0.7386 0.8334 0.7327
            FedGAMMA 0.8292 0.7218 0.8043 0.6105
            FedSMOO  0.8410 0.7507 0.8382 0.7099
            FedLESAM(-S/-D) 0.8165 0.7284 0.8127 0.6381
            FedWMSAM 0.8356 0.7664 0.8443 0.7446
            """,
        ),
        **parse_numbers(
            partition_columns("CIFAR-100", 20, 10),
            """
            FedAvg   0.3917 0.3815 0.3968 0.3631
            FedCM    0.4635 0.4290 0.4394 0.3940
            SCAFFOLD 0.4855 0.4437 0.4647 0.4133
            FedSAM   0.4083 0.3790 0.3933 0.3553
            MoFedSAM 0.4859 0.4472 0.4619 0.4279
            FedGAMMA 0.4837 0.4474 0.1739 0.0198
            FedSMOO  0.3225 0.2987 0.4620 0.3006
            FedLESAM(-S/-D) 0.4260 0.4114 0.4298 0.3914
            FedWMSAM 0.4908 0.4646 0.4786 0.4383
            """,
        ),
    },
    "tab:comparison_domains": parse_numbers(
        ["Art", "Clipart", "Product", "Real World"],
        """
        FedAvg   0.9909 0.9569 0.9725 0.9633
        FedCM    0.9316 0.8013 0.8783 0.8411
        SCAFFOLD 0.9934 0.9610 0.9745 0.9749
        FedSAM   0.9851 0.9402 0.9576 0.9685
        MoFedSAM 0.9921 0.9458 0.9653 0.9566
        FedGAMMA 0.9934 0.9557 0.9758 0.9605
        FedSMOO  0.9868 0.9563 0.9753 0.9629
        FedLESAM 0.9930 0.9626 0.9783 0.9713
        FedWMSAM 0.9942 0.9650 0.9790 0.9717
        """,
    ),
    "tab:comparison": parse_numbers(
        ["0.7", "0.72", "0.74", "0.76", "0.78", "Time(s)"],
        """
        FedAvg     254 348 432 -   -   14.57
        FedCM      97  132 255 426 -   14.67
        SCAFFOLD   189 241 301 376 -   17.44
        FedSAM     247 303 403 -   -   26.90
        MoFedSAM   97  132 169 255 426 29.73
        FedGAMMA   208 241 300 374 -   29.72
        FedSMOO    134 167 201 255 382 29.77
        FedLESAM   241 303 433 -   -   14.66
        FedLESAM-D 149 187 211 255 -   16.96
        FedLESAM-S 205 247 313 432 -   16.71
        FedWMSAM   97  114 153 241 356 15.03
        """,
    ),
    "tab:local_epoch_comparison": parse_numbers(
        ["Epoch 1", "Epoch 5", "Epoch 10", "Epoch 20"],
        """
        FedAvg   0.6003 0.7005 0.6988 0.6879
        MoFedSAM 0.7237 0.7386 0.6997 0.6776
        FedSAM   0.5515 0.6963 0.6862 0.6903
        FedSMOO  0.7888 0.7507 0.7538 0.7472
        FedWMSAM 0.7484 0.7664 0.7662 0.7515
        """,
    ),
    "fig:client_num": parse_numbers(
        ["20 clients", "50 clients", "75 clients", "100 clients", "150 clients", "200 clients"],
        # FedSAM at 75: the bar itself is about .61 high.
        """
        FedAvg   .714 .675 .722 .700 .704 .699
        MoFedSAM .216 .598 .667 .739 .759 .790
        FedSAM   .701 .567 .567 .696 .705 .698
        FedSMOO  .718 .731 .742 .751 .756 .758
        FedWMSAM .718 .719 .762 .766 .768 .795
        """,
    ),
    "fig:sample": parse_numbers(
        ["5 %", "10 %", "20 %", "40 %", "80 %", "100 %"],
        """
        FedAvg   .679 .700 .743 .747 .747 .749
        MoFedSAM .653 .739 .796 .804 .804 .805
        FedSAM   .609 .696 .674 .715 .718 .719
        FedSMOO  .736 .751 .764 .805 .810 .810
        FedWMSAM .743 .766 .804 .806 .807 .811
        """,
    ),
    # Rows: personalized momentum, SAM, adaptive weight. The paper's "Imp." is the difference to the
    # last row.
    "tab:ablation": parse_numbers(
        ["Acc."],
        """
        ✓✓✓ 0.7664
        ✓✓× 0.7556
        ×✓✓ 0.7265
        ✓×✓ 0.7326
        ✓×× 0.7478
        ×✓× 0.7430
        ××× 0.7229
        """,
    ),
    "tab:ablation-results": parse_numbers(
        ["ρ = 0.005", "ρ = 0.01", "ρ = 0.05", "ρ = 0.1", "ρ = 0.5"],
        """
        FedAvg   0.7005 0.7005 0.7005 0.7005 0.7005
        MoFedSAM 0.7355 0.7386 0.7102 0.5562 0.1000
        FedWMSAM 0.7659 0.7664 0.7563 0.7244 0.5905
        """,
    ),
    "tab:sensitivity_analysis": parse_numbers(
        ["0.68", "0.7", "0.72", "0.74", "0.76", "0.78"],
        """
        λ=1     119 144 170 224 343 -
        λ=0.5   118 152 170 241 313 -
        λ=0.1   99  123 153 208 311 -
        λ=0.05  97  113 153 207 292 -
        λ=0.01  72  98  114 153 241 356
        λ=0.005 72  98  114 153 234 382
        """,
    ),
}
"""The printed numbers of each table or figure, by its label."""
