"""The French of the built-in corpus is correct: each rule is tested on sentences written by hand."""

from tests.microworld.derivations import derivations


def french(source: str) -> str:
    """The French of an English sentence, which must have exactly one derivation."""
    (example,) = derivations(source)
    return example.target


def test_articles_agree_in_gender() -> None:
    assert french("The king buys a car.") == "Le roi achète une voiture."
    assert french("The queen buys a boat.") == "La reine achète un bateau."
    assert french("This woman reads this book.") == "Cette femme lit ce livre."


def test_articles_elide_before_a_vowel_and_a_silent_h_only() -> None:
    assert french("The man sees the animal.") == "L'homme voit l'animal."
    assert french("The owl sees the girl.") == "Le hibou voit la fille."
    assert french("The king reads the story.") == "Le roi lit l'histoire."


def test_this_is_cet_before_a_masculine_vowel() -> None:
    assert french("This man visits this hotel.") == "Cet homme visite cet hôtel."
    assert french("This owl hears this actress.") == "Ce hibou entend cette actrice."
    assert french("This old man visits this school.") == "Ce vieil homme visite cette école."


def test_my_is_mon_before_any_vowel() -> None:
    assert french("My aunt eats my orange.") == "Ma tante mange mon orange."
    assert french("My uncle eats my big orange.") == "Mon oncle mange ma grande orange."


def test_each_adjective_has_its_place_before_or_after_the_noun() -> None:
    assert french("The girl sells a small red car.") == "La fille vend une petite voiture rouge."
    assert french("The boy reads an interesting letter.") == "Le garçon lit une lettre intéressante."
    assert french("The boy reads a new letter.") == "Le garçon lit une nouvelle lettre."


def test_adjectives_agree_also_the_irregular_ones() -> None:
    assert french("The goat is white.") == "La chèvre est blanche."
    assert french("The geese aren't white.") == "Les oies ne sont pas blanches."
    assert french("The queens were happy.") == "Les reines étaient heureuses."
    assert french("The king was happy.") == "Le roi était heureux."
    assert french("These cars are expensive.") == "Ces voitures sont chères."
    assert french("My eggs are fresh.") == "Mes œufs sont frais."
    assert french("My apple isn't fresh.") == "Ma pomme n'est pas fraîche."
    assert french("The women weren't worried.") == "Les femmes n'étaient pas inquiètes."


def test_bel_vieil_and_nouvel_stand_before_a_masculine_vowel() -> None:
    assert french("The girl draws a beautiful bird.") == "La fille dessine un bel oiseau."
    assert french("The old man waters an old tree.") == "Le vieil homme arrose un vieil arbre."
    assert french("The king buys a new plane.") == "Le roi achète un nouvel avion."
    assert french("The king buys some new planes.") == "Le roi achète de nouveaux avions."
    assert french("The girl draws an old owl.") == "La fille dessine un vieux hibou."
    assert french("The hotel is beautiful.") == "L'hôtel est beau."


def test_some_is_des_and_de_before_an_adjective() -> None:
    assert french("The boys see some cats.") == "Les garçons voient des chats."
    assert french("The boys see some black cats.") == "Les garçons voient des chats noirs."
    assert french("The boys see some old cats.") == "Les garçons voient de vieux chats."


def test_negation_is_ne_pas_and_elides_and_turns_a_into_de() -> None:
    assert french("The cat doesn't see the queen.") == "Le chat ne voit pas la reine."
    assert french("The cats don't avoid the queen.") == "Les chats n'évitent pas la reine."
    assert french("The woman doesn't have a red car.") == "La femme n'a pas de voiture rouge."
    assert french("The women don't want any oranges.") == "Les femmes ne veulent pas d'oranges."


def test_the_past_is_the_passe_compose() -> None:
    assert french("The women bought an apple.") == "Les femmes ont acheté une pomme."
    assert french("The boy didn't read the newspapers.") == "Le garçon n'a pas lu les journaux."
    assert french("The men read the newspaper.") == "Les hommes lisent le journal."


def test_object_pronouns_agree_elide_and_stand_before_the_verb() -> None:
    assert french("The woman has a red car and she loves it.") == "La femme a une voiture rouge et elle l'aime."
    assert french("The boy finds a letter and he reads it.") == "Le garçon trouve une lettre et il la lit."
    assert (
        french("The girl finds a book but she doesn't read it.") == "La fille trouve un livre mais elle ne le lit pas."
    )
    assert french("The girls see some eggs and they eat them.") == "Les filles voient des œufs et elles les mangent."
    assert (
        french("The kings see a hat but they don't love it.") == "Les rois voient un chapeau mais ils ne l'aiment pas."
    )


def test_qui_is_the_subject_and_que_the_object() -> None:
    assert french("The dog that eats the apples is black.") == "Le chien qui mange les pommes est noir."
    assert french("The girl who reads the books is happy.") == "La fille qui lit les livres est heureuse."
    assert french("The story that the girls read is old.") == "L'histoire que les filles lisent est vieille."
    assert french("The hats that an actor wears are green.") == "Les chapeaux qu'un acteur porte sont verts."


def test_de_and_a_contract_with_le_and_les_only() -> None:
    assert french("The king's house is old.") == "La maison du roi est vieille."
    assert french("The queen's hats were blue.") == "Les chapeaux de la reine étaient bleus."
    assert french("The actor's cars are dirty.") == "Les voitures de l'acteur sont sales."
    assert french("The queen gives a letter to the boy.") == "La reine donne une lettre au garçon."
    assert french("The aunts send some cakes to the girls.") == "Les tantes envoient des gâteaux aux filles."
    assert french("The witch shows the map to the man.") == "La sorcière montre la carte à l'homme."
    assert french("The mouse sleeps near the trees.") == "La souris dort près des arbres."
    assert french("The wolves don't wait in front of the castle.") == "Les loups n'attendent pas devant le château."


def test_it_is_il_or_elle_by_what_the_adjective_describes() -> None:
    assert french("The animal didn't cross the street because it was too tired.") == (
        "L'animal n'a pas traversé la rue parce qu'il était trop fatigué."
    )
    assert french("The animal didn't cross the street because it was too wide.") == (
        "L'animal n'a pas traversé la rue parce qu'elle était trop large."
    )
    assert french("The mouse didn't climb the wall because it was too lazy.") == (
        "La souris n'a pas escaladé le mur parce qu'elle était trop paresseuse."
    )
    assert french("The mouse didn't climb the wall because it was too high.") == (
        "La souris n'a pas escaladé le mur parce qu'il était trop haut."
    )
    assert french("My old goose didn't enter this cave because it was very narrow.") == (
        "Ma vieille oie n'est pas entrée dans cette grotte parce qu'elle était très étroite."
    )
    assert french("This beautiful bear didn't enter the cage because it was very worried.") == (
        "Ce bel ours n'est pas entré dans la cage parce qu'il était très inquiet."
    )


def test_nouns_and_verbs_agree_in_number() -> None:
    assert french("The horse follows the lady.") == "Le cheval suit la dame."
    assert french("The horses follow the ladies.") == "Les chevaux suivent les dames."
    assert french("The birds eat the cakes.") == "Les oiseaux mangent les gâteaux."
    assert french("The mice smell my carrots.") == "Les souris sentent mes carottes."
    assert french("These actresses choose an old coat.") == "Ces actrices choisissent un vieux manteau."
